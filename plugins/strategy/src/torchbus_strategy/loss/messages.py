"""The texts of warnings and ``explain()`` about the averaging of losses."""

UNLIKE = (
    "the terms of the loss are means over different counts ({} on rank 0): a rank's gradient has"
    " one weight, that of the first. If one process is to be matched, call backward for each term"
)
BRANCH = (
    "the ranks' losses have different numbers of terms in this backward ({} on rank 0): a rank's"
    " gradient has one weight, so a term that only some ranks compute is too small. Compute every"
    " term on each rank, as in `(values * mask).sum() / (mask.sum() + 1e-8)` in place of `if"
    " mask.any(): ... values[mask].mean()`"
)
LATE = (
    "the terms of the loss have become means over different counts ({} on rank 0): in this"
    " backward a rank's gradient has one weight, that of the first; from the next one on each term"
    " has its own"
)
ZIPPED = (
    "one step used batches of two loaders, whose shares have different weights ({}), and {}: the"
    " step's gradient has the weight of the last one, so it is slightly off. Give the loaders the"
    " same length and batch size"
)
IN_NO_GRAPH = "the graph does not show which of them each term of the loss is a mean over"
IN_WINDOW = "in a window of several backwards all terms have one weight"
NEITHER = (
    "the loss is a sum divided by {:g} on every rank, which is neither the number of this rank's"
    " samples ({}) nor of all ranks' ({}): it is treated as normalised over ranks already,"
    " and the ranks' gradients are averaged. If one process would divide by that constant"
    " as well, pass loss_reduction='sum'"
)
EITHER = (
    "the loss is a sum divided by {:g}, which is the number of all ranks' samples, and also that of"
    " the elements that were summed on this rank: it is treated as a constant of the script, and"
    " the ranks' sums are added up. If the script has counted this rank's elements, divide by a"
    " tensor, as mask.sum() is"
)
TIMES_CONSTANT = (
    "a term of the loss is a sum divided by {0:g}, or multiplied by {3:g}, on every rank, which is"
    " neither the number of this rank's samples ({1}) nor of all ranks' ({2}): the ranks' sums are"
    " averaged. If one process would use that constant as well, this term is too small: multiply it"
    " by s.world_size"
)
MAY_BE_NONE = (
    "on some rank the loss is a sum divided by 1. If this 1 is max(1, n) with n = 0, one process"
    " divides by another number: reduce n over ranks, n = s.reduce(n), and divide by"
    " max(1 / s.world_size, n)"
)
SILENT = (
    "backwards under s.no_sync() are weighted by samples, but this loss counts something else ({}):"
    " their gradients, and those averaged with them, are slightly off. Use"
    " accumulate_grad_batches, which weights by what the loss counts"
)
REPEATED = (
    "at the ragged end a rank was left without samples and repeated a batch, and the script divides"
    " by a number that it takes from all ranks: that number has counted the repeated samples as"
    " well. drop_last=True avoids such steps"
)
NONLINEAR = (
    "the loss is not a mean over samples but a function of such means or sums (a root, a ratio, a"
    " product), or of their order (the largest, a median): each rank, and each batch of a window,"
    " computes it for its own samples, and the mean of these is not what one process computes for"
    " the whole batch. strategy='dp' computes it for the whole batch"
)
COMPARES = (
    "the loss compares samples with each other (a product or a distance of pairs, a statistic over"
    " samples, their order): each rank, and each batch of a window, sees only the pairs of its own"
    " share, so the gradients are not those of one process. strategy='dp' computes the loss for the"
    " whole batch"
)
SUM = (
    "the loss is a sum over samples, as its graph says: losses and gradients are summed over ranks"
)
PENALTY = (
    "the loss adds a penalty of the parameters to a sum over samples, and in this backward whole"
    " losses are summed over ranks and over the batches of a window: the penalty is too large by"
    " their number. Give the optimizer weight_decay instead"
)
SUM_BESIDE = (
    "a term of the loss is a sum over samples, and the others are not means over samples whose"
    " number the graph shows: all are averaged over ranks and over the batches of a window, so"
    " the gradient of the sum is too small. Divide the sum by its number of samples"
)
SHOWN_OTHERWISE = (
    "the gradients are exact, but the loss that the loop shows is not: it is the mean of the ranks'"
    " losses, whose terms weigh differently, and the graph has not kept the terms' values. To show"
    " the exact loss, reduce each term: s.reduce(term, 'sum') for a sum over samples,"
    " s.reduce(values.sum(), 'sum') / s.reduce(count, 'sum') for a mean over count of them"
)
NORMALISED = (
    "the loss multiplies this rank's samples by weights that add up to one, or are one on average:"
    " if the script has divided them by the sum or the mean of this batch's weights, each rank, and"
    " each batch of a window, has another divisor. Divide after the sum instead:"
    " (losses * weights).sum() / weights.sum(). This is exact on any number of ranks"
)
STANDARDISED = (
    "the loss multiplies this rank's samples by numbers whose mean is 0 and whose deviation is 1:"
    " if the script has standardised them in this batch, as one does with advantages, each rank,"
    " and each batch of a window, has used another mean and deviation. Standardise them"
    " before the batches are made, or by means of all ranks: s.reduce(x.mean()),"
    " s.reduce((x * x).mean())"
)
TIMES_ROWS = (
    "the loss is a mean multiplied by {:g}, the number of this rank's samples. If that makes it a"
    " sum over samples, pass loss_reduction='sum': as a mean, its gradients are too small by the"
    " number of ranks and of batches in a window"
)
UNKNOWN_OVER = (
    "the loss is divided by {:g}, a number of samples of all ranks, and its graph does not show"
    " whether it is a sum over samples: it counts as a mean. If it is a sum, pass"
    " loss_reduction='sum'"
)
MIXED = (
    "a term of the loss counts {:g} things for {} samples, and another term can't be read from the"
    " graph: the gradients of all terms are weighted by samples, which may be slightly off. Call"
    " backward for each term"
)
HIDDEN = (
    "the loss comes out of a compiled function, whose graph can't be read: if it is a mean over"
    " something else than samples (tokens, targets that are not ignored), say so by"
    " s.backward_weight(count)"
)
BY_KIND = {
    "hidden": HIDDEN,
    "nonlinear": NONLINEAR,
    "normalised": NORMALISED,
    "standardised": STANDARDISED,
}
NO_COUNT = (
    "loss_weight='tokens': the graph of this loss does not show what it is a mean over ({}): call"
    " s.backward_weight(count) before backward"
)
NOTES = {
    "targets": (
        "the loss is a mean over targets, of which its graph has the number (or the weight): ranks"
        " and batches count by it"
    ),
    "divided": "the loss is a sum over a number that its graph has: ranks and batches count by it",
    "terms": (
        "the terms of the loss are means over different counts, as its graph shows: each term is"
        " weighted by its count"
    ),
    "sums": (
        "a term of the loss is a sum over samples, as its graph says, and is summed over ranks;"
        " the others are averaged"
    ),
    "zipped": (
        "at the ragged end each term of the loss is weighted by the share of the loader whose batch"
        " it reads, as its graph says"
    ),
    "elements": (
        "the loss is a mean over elements, as many as its graph says: ranks and batches count by it"
    ),
}
