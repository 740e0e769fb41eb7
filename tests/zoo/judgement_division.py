"""(c) Which samples each rank took, against the batches of the one process."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from harness import Run
from loop import Loop

from torchbus_verify.compare import samples
from torchbus_verify.record.writing import RankRecord

Passes = dict[tuple[int, int], list[Any]]
"""The samples of each pass over each loader."""


def judge_division(loop: Loop, run: Run, reference: Run) -> Iterator[str]:
    """(c) In each pass the ranks' training batches are shares of the one process's, and evaluation
    sees everything, over training data too.
    """
    seen = samples.compare(run.ranks, reference.ranks[0], whole=loop.whole)
    if loop.same_order:
        yield from (f"(c) {problem}" for problem in seen.problems)
    else:
        yield from (f"(c) {problem}" for problem in judge_passes(run.ranks, reference.ranks[0]))
    yield from (f"(c) every rank trained on all of {one}" for one in seen.twice)
    yield from (f"(c) each rank evaluated a part of {one}" for one in seen.parts)


def judge_passes(ranks: list[RankRecord], plain: RankRecord) -> Iterator[str]:
    """Each sample of a training pass once, in whatever order; one that its own rank repeats weighs
    nothing.
    """
    ours = [passes_over(record) for record in ranks]
    for key, wanted in passes_over(plain).items():
        taken = Counter(one for passes in ours for one in set(passes.get(key, [])))
        if taken != Counter(wanted):
            wrong = sorted((taken - Counter(wanted)) + (Counter(wanted) - taken))
            yield f"loader {key[0]}, pass {key[1]}: lost, or taken more than once: {wrong}"


def passes_over(record: RankRecord) -> Passes:
    """Those that train."""
    passes: defaultdict[tuple[int, int], list[Any]] = defaultdict(list)
    for event in record.of("batch"):
        if event["trains"]:
            passes[event["loader"], event["of_pass"]] += event["samples"]
    return passes
