"""The texts of errors and warnings about accumulation."""

from __future__ import annotations

BETWEEN = (
    "zero_grad() after backward() and without optimizer.step(), in the middle of an "
    "accumulation window: the gradients that this batch has added to those of earlier batches"
    " can't be removed. Leave a batch out before its backward(), or accumulate in the loop under"
    " s.accumulating(...)"
)
FAILED = (
    "backward() has failed in the middle of an accumulation window, and the loop continues: the"
    " gradients that it has added to those of earlier batches can't be removed. Leave such a"
    " batch out before its backward(), or accumulate in the loop under s.accumulating(...)"
)
UNCLEARED = (
    "accumulate_grad_batches, with a loss that counts something other than samples (tokens): a"
    " backward() was added to gradients of an earlier window, and the two can't be weighted"
    " separately. Call step() and zero_grad() for each batch, or pass loss_weight='samples'"
)
SHARED = (
    "accumulate_grad_batches with two optimizers that hold the same parameters ({} and {}): "
    "each would add up the other's gradients. Give each parameter to one optimizer, or "
    "accumulate in the loop under s.accumulating(...)"
)
ASSIGNED = (
    "accumulate_grad_batches with gradients that the loop has assigned to the parameters of "
    "{} (torch.autograd.grad): without backward() the weight of each rank's gradients is unknown. "
    "Call backward(), or leave the option out and accumulate in the loop"
)
UNLIKE = (
    "several backward() calls before one step() have losses that count different things (such as"
    " tokens and samples): the whole batch gets the weight of the last one, so gradients are"
    " slightly off. Add the losses for one backward(), or pass loss_weight='samples'"
)
AGAIN = (
    "accumulate_grad_batches with several steps of {} on one batch, each after a separate"
    " backward() (chunks of a sequence, several steps of a critic): one process with a larger"
    " batch would step as often, and a window steps once. Leave accumulate_grad_batches out, or"
    " accumulate in the loop under s.accumulating(...)"
)
TWICE = (
    "accumulate_grad_batches, and the loop accumulates as well: it calls step() of {} once for the"
    " gradients of several batches. Leave one of the two out: accumulate_grad_batches, or the"
    " loop's own windows (in Accelerate, gradient_accumulation_steps)"
)
MOVED = (
    "accumulate_grad_batches: the parameters of {} were changed between two backward() calls of one"
    " batch, as SAM does. In the middle of a window they are moved by the gradient of one rank and"
    " of the batches so far; one process with a larger batch moves them by that of the whole"
    " window. Leave accumulate_grad_batches out, and use a larger batch_size"
)
CHANGED = (
    "the parameters of {} were changed in the middle of an accumulation window, and not by"
    " optimizer.step(). If that is meant to happen once per step, it happens for each batch: do it"
    " in optimizer.register_step_post_hook(...), which waits for real steps"
)
AVERAGED = (
    "a model that no optimizer trains has changed in the middle of an accumulation window, as an"
    " average of weights (EMA) does: it is updated for each batch, and not once per step. Update it"
    " in optimizer.register_step_post_hook(...), which waits for real steps, or use torch's"
    " AveragedModel"
)
TOUCHED = (
    "the gradients of {} were changed between backward() and step(), in the middle of an"
    " accumulation window: there they are the sum of the batches so far, of one rank. Do it in"
    " optimizer.register_step_pre_hook(...), which waits for real steps, or clip by"
    " torch.nn.utils.clip_grad_norm_"
)
CUT_OFF = (
    "an accumulation window was left before its last batch (by break, or under s.no_sync()):"
    " its losses count something other than samples (tokens), and replicas that come and go can't"
    " exchange the counts. Leave the pass after a whole window, or pass loss_weight='samples'"
)
OUTLIVES = (
    "accumulate_grad_batches: {} holds tensors with a row for each sample of the batch in which it"
    " was made, and steps in a later batch too. If they are weights, call s.adopt(tensor) before"
    " you make the optimizer. If they belong to the samples, make them and the optimizer in each"
    " batch"
)
ENDED = (
    "accumulate_grad_batches: {} has ended, and the loop continues. Its length {} is a multiple of"
    " len(loader), so it is read as a number of batches. If you mean optimizer steps over the whole"
    " loop, write epochs * len(loader), without the division; or loop over range(epochs) or"
    " s.epochs(epochs), which says what the length counts"
)
