"""Findings besides the steps' numbers: samples, repeated work, printed output, files."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchbus_verify.causes import cause
from torchbus_verify.causes.cause import Cause
from torchbus_verify.causes.gradients import adds_losses
from torchbus_verify.causes.search import describe
from torchbus_verify.compare import difference, output, samples
from torchbus_verify.compare.difference import Comparison, Difference
from torchbus_verify.compare.output import LineDifference
from torchbus_verify.compare.samples import SampleComparison, some
from torchbus_verify.runs import inside
from torchbus_verify.runs.run import EndedRun
from torchbus_verify.variants import Laboratory

WHOLE_BATCHES = ("dp", "pipeline", "rpc_sequential", "tp")
"""Strategies that divide a model, or the batch in its forward: every rank gets the whole batch."""


@dataclass
class Beside:
    """The findings besides the steps' numbers."""

    causes: list[Cause] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def look_beside(
    lab: Laboratory,
    plain: EndedRun,
    ours: EndedRun,
    found: Comparison,
    tolerated: float,
    differs: bool,
) -> Beside:
    """Compare samples, repeated work, ranks with each other, printed output and files.

    ``tolerated`` is how far the numbers of the two runs are apart, by rounding. ``differs`` is True
    if the steps' numbers differ, so that output and files may differ, too.
    """
    reported = Beside()
    if inside.same_backwards(lab.request):
        _add_samples(reported, lab, samples_of(lab, ours, plain), difference.replicas(ours.ranks))
    else:
        reported.notes.append(
            "samples, losses and prints are not compared under accumulate_grad_batches"
        )
    is_summed = False
    if not differs and found.losses_beyond():
        is_summed = _add_losses(reported, plain, ours, found.losses_beyond()[0])
    unequal = (
        difference.different(ours.ranks)
        if not difference.local_rows(ours.ranks, plain.first)
        else ""
    )
    if unequal:
        reported.causes.append(cause.ranks(unequal))
    if not (differs or is_summed) and inside.same_backwards(lab.request):
        _add_prints(reported, lab, plain, ours, 10 * tolerated)
    allowed = max([10 * tolerated, *(one.allowed for one in found.places[-1:])])
    _add_files(reported, lab, plain, ours, float("inf") if differs else allowed)
    if difference.hide_gradients(ours.ranks):
        reported.notes.append("gradients are not compared: the strategy keeps them to itself")
    unseen = difference.unseen(ours.ranks)
    if unseen:
        reported.notes.append(f"values that rank 0 does not have are not compared: {some(unseen)}")
    if not (found.models or differs):  # a difference may come before they are compared
        reported.notes.append(
            "losses and prints were compared, and no parameters: no model and no optimizer has any"
        )
    if found.thinned:
        reported.notes.append(
            f"of {len(found.thinned)} large tensors a part was compared, and the norm:"
            f" {some(found.thinned)}"
        )
    return reported


def _add_files(
    reported: Beside, lab: Laboratory, plain: EndedRun, ours: EndedRun, allowed: float
) -> None:
    again = lab.plain(again=1) if ours.written != plain.written else None
    chance = output.by_chance(plain, again) if again is not None else []
    if chance:
        reported.notes.append(
            f"files named by the clock or by chance are not compared: {some(chance)}"
        )
    for one in output.compare(ours, plain, again, allowed):
        reported.causes.append(cause.files(f"{one.name} {one.text}"))


def samples_of(lab: Laboratory, ours: EndedRun, plain: EndedRun) -> SampleComparison:
    """Compare the samples; if they differ, compare again without draws in training."""
    seen = samples.compare(ours.ranks, plain.first)
    if not seen.problems:
        return seen
    consumed = lab.suspects
    return samples.compare(lab.session(consumed).ranks, lab.plain(consumed).first)


def _add_samples(reported: Beside, lab: Laboratory, seen: SampleComparison, replicas: bool) -> None:
    by_strategy = lab.request.options.get("strategy") in WHOLE_BATCHES
    if seen.problems:
        reported.causes.append(cause.samples(seen.problems))
    if (seen.twice or replicas) and not by_strategy and not seen.divided:
        data = (
            f"all of {some(list(seen.twice))}"
            if seen.twice
            else "batches that the script makes itself"
        )
        reported.notes.append(
            f"nothing was gained: every rank computed the same, on {data}. Divide the batches by"
            " s.shard(...) (torchbus.current().shard(...) under torchbus run), or use"
            " --strategy dp"
        )
    elif seen.twice and not by_strategy:
        reported.notes.append(
            f"work was done twice: every rank trained on all of {some(list(seen.twice))}"
        )


def _add_losses(reported: Beside, plain: EndedRun, ours: EndedRun, first: Difference) -> bool:
    """Report that gradients are the same (maybe after clipping), but not the loss that is read.

    Return whether the plain run's loss is the sum of the ranks' losses, which also explains
    differences in printed losses.
    """
    mine = [record.of("backward")[first.step]["own"] for record in ours.ranks]
    whole = plain.first.of("backward")[first.step]["loss"]
    read = ours.first.of("backward")[first.step]["loss"]
    if read == mine[0] and None not in mine and min(mine) <= whole <= max(mine):
        reported.notes.append(
            f"from backward {first.step + 1} on the loss that the loop reads is the rank's own, and"
            " gradients are the global ones: its graph is kept (retain_graph, create_graph), it is"
            " a leaf, or sync_loss=False"
        )
        return False
    if adds_losses(ours.ranks, plain.first, first.step):
        reported.causes.append(cause.summed_losses(f"loss in backward {first.step + 1}"))
        return True
    reported.causes.append(cause.unexplained(describe(first), first.kind))
    return False


def _add_prints(
    reported: Beside, lab: Laboratory, plain: EndedRun, ours: EndedRun, near: float
) -> None:
    found = _different_lines(lab, plain, ours, near)
    if not found:
        return
    if lab.request.options.get("shard_eval"):
        whole = lab.session(shard_eval=False)
        if not whole.status and not _different_lines(lab, plain, whole, near):
            parts = samples.compare(ours.ranks, plain.first).parts
            reported.causes.append(cause.evaluation(some(list(parts)) or "the data"))
            return
    of_ranks = [output.lines_of(record) for record in ours.ranks]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    adds_up = all(output.sums(line, of_ranks) for line in found)
    reported.causes.append(cause.local_number(_quoted(found[0]) + more, adds_up))


def _different_lines(
    lab: Laboratory, plain: EndedRun, ours: EndedRun, near: float
) -> list[LineDifference]:
    mine, theirs = output.lines_of(ours.first), output.lines_of(plain.first)
    if not output.compare_printed(mine, theirs):
        return []
    repeated = output.lines_of(lab.plain(again=1).first)
    return output.compare_printed(mine, theirs, output.volatile(theirs, repeated), near)


def _quoted(line: LineDifference) -> str:
    if not line.ours or not line.theirs:
        side = "the session's run" if line.ours else "the plain run"
        return f"only {side} prints {line.ours or line.theirs!r}"
    return f"line {line.number + 1} of what is printed is {line.ours!r}, not {line.theirs!r}"
