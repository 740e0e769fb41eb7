"""A cause of a difference, with its remedy."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Cause:
    """Why two runs differ.

    ``found`` is the evidence. ``inherent`` is True for a property of data parallel training;
    otherwise, numbers are wrong.
    """

    name: str
    found: str
    remedy: str
    inherent: bool


HOW_IT_IS = "This is how data parallel training is"


def draws(operation: str) -> Cause:
    return Cause(
        "draws in training",
        f"with the same draws on both sides the difference is gone (the first was {operation})",
        f"{HOW_IT_IS}: each rank draws its own dropout, noise or batches, as each sample does in"
        " one process.",
        True,
    )


def statistics() -> Cause:
    return Cause(
        "batch normalisation",
        "without the statistics of the batch on both sides the difference is gone",
        f"{HOW_IT_IS}: each rank normalises by its part of the batch. On GPUs, sync_batchnorm=True"
        " takes the whole.",
        True,
    )


def augmentation(dataset: str) -> Cause:
    return Cause(
        "chance in reading data",
        f"with the same draws for each sample of {dataset} on both sides the difference is gone",
        f"{HOW_IT_IS}: the rank that reads a sample draws its augmentation. Seed by the index to"
        " fix it.",
        True,
    )


def between_samples(where: str, by_dp: bool) -> Cause:
    proof = ", and with strategy='dp' it is gone" if by_dp else ""
    return Cause(
        "a loss between samples, or a choice by the batch",
        f"no weights of the ranks' own gradients make the plain run's ({where}); with whole batches"
        f" on every rank the difference is gone{proof}",
        'Use strategy="dp", which computes the loss of the whole batch, or gather what is compared'
        " with torch.distributed.nn.all_gather.",
        True,
    )


def nothing_to_count(where: str) -> Cause:
    return Cause(
        "a divisor of 1 on a rank without anything to count",
        f"{where}; on some rank the loss is a sum divided by 1, and with whole batches on every"
        " rank the difference is gone",
        "Take the number from all ranks: n = s.reduce(n), and divide by max(1 / s.world_size, n).",
        False,
    )


def beside_means(where: str) -> Cause:
    return Cause(
        "a sum over samples with a constant factor, beside means",
        f"{where}; the ranks' sums are averaged, and with whole batches on every rank the"
        " difference is gone",
        'Multiply the sum by s.world_size, or use strategy="dp".',
        False,
    )


def weights(where: str, needed: str, used: str) -> Cause:
    return Cause(
        "a loss weighted by something else than samples",
        f"the plain run's {where} weighs the ranks' own gradients by {needed}, the session's by"
        f" {used}",
        "Call s.backward_weight(tokens) before backward, with this rank's count.",
        False,
    )


def summed(where: str, used: str) -> Cause:
    return Cause(
        "a loss that is a sum over samples",
        f"the plain run's {where} is the sum of the ranks' own gradients, the session weighs them"
        f" by {used}",
        'Pass loss_reduction="sum" to the session (--loss-reduction sum).',
        False,
    )


def summed_losses(where: str) -> Cause:
    mean = "the sum of the ranks' own losses, the session's their mean"
    return replace(summed(where, ""), found=f"the plain run's {where} is {mean}")


def averaging(where: str, needed: str, used: str) -> Cause:
    return Cause(
        "gradients that are not averaged as they should be",
        f"the plain run's {where} weighs the ranks' own gradients by {needed} (their samples), the"
        f" session's by {used}",
        "Something changes gradients after the ranks have agreed on them, or keeps them from"
        " agreeing: look at the plugins of the session.",
        False,
    )


def buffers(name: str) -> Cause:
    return Cause(
        "a buffer that follows the batch",
        f"{name} is computed from a rank's part of the batch; with whole batches on every rank the"
        " difference is gone",
        f"{HOW_IT_IS}: after each backward every rank has rank 0's buffers.",
        True,
    )


def divided(what: str) -> Cause:
    return Cause(
        "a batch in parts",
        f"{what}; with whole batches on every rank the difference is gone",
        f'{HOW_IT_IS}: something in the loop depends on the batch as a whole. strategy="dp" leaves'
        " it whole.",
        True,
    )


def skipped(what: str) -> Cause:
    return Cause(
        "steps by the size of a batch",
        f"{what}; with whole batches on every rank the difference is gone",
        "A loop that skips batches of another size than the loader's skips each rank's share. Pass"
        " drop_last=True to the loader instead.",
        False,
    )


def local_number(what: str, adds_up: bool) -> Cause:
    found = f"{what}; the ranks' own numbers add up to the plain run's" if adds_up else what
    return Cause(
        "a number that each rank counts separately",
        found,
        'Reduce it: s.reduce(number, "sum") for counts and sums, s.reduce(number) for means.',
        True,
    )


def evaluation(datasets: str) -> Cause:
    return Cause(
        "evaluation divided",
        f"each rank evaluated a part of {datasets}; without shard_eval the same lines are printed",
        'Reduce what is counted: s.reduce(number, "sum"), or leave shard_eval out.',
        True,
    )


UNEXPLAINED = {
    "gradient": "gradients that something changes",
    "parameter": "a step that does something else with the same gradients",
    "buffer": "a buffer that something changes",
    "learning rate": "a learning rate that something changes",
    "order": "steps that are left out or added",
    "loss": "a loss that something changes",
}


def unexplained(what: str, kind: str) -> Cause:
    return Cause(
        UNEXPLAINED.get(kind, "a model that something changes"),
        f"{what}; it remains with the same draws, without batch statistics, and with whole batches"
        " on every rank",
        "This is none of what data parallel training changes: look at the plugins of the session.",
        False,
    )


def samples(problems: tuple[str, ...]) -> Cause:
    more = f"; and {len(problems) - 1} batches more" if len(problems) > 1 else ""
    return Cause(
        "other samples",
        problems[0] + more,
        "Look at what divides the data: a sampler, s.shard, a loader of your own.",
        False,
    )


def ranks(what: str) -> Cause:
    return Cause(
        "ranks that differ",
        what,
        "Something changes parameters on one rank: draws, or a step by hand. Gradients that"
        " backward does not make are averaged if assigned to p.grad before optimizer.step().",
        False,
    )


def files(what: str) -> Cause:
    return Cause(
        "files",
        what,
        "Write it once, under `if s.is_main:` or with torch.save, which the session makes whole.",
        False,
    )
