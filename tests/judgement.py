"""Judges a run of the zoo's harness: whether the numbers, the data and the files agree with those of one process.

A verdict is a list of problems, each led by the letter of what it breaks:
(a) ranks agree, (b) numbers of one process, (c) the work was divided, (d) files and output once; (-) for the rest.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
from harness import Run
from zoo import Loop

TINY = 1e-12
"""Below this, a difference is rounding whatever the tensor's scale: a bias whose gradient is zero but for that."""

Facts = dict[str, np.ndarray | None]
"""Parameters, buffers, gradients, rates and counts by name."""

Pass = list[list[Any]]
"""The batches fetched in one pass over a loader."""


def judge(loop: Loop, run: Run, reference: Run, ranks: int) -> list[str]:
    """All that is wrong with a run, `reference` being the one process to compare it with; nothing when all is well."""
    if loop.refused:
        return list(judge_refusal(loop, run))
    if run.status or len(run.ranks) != ranks:
        return [f"(-) exit status {run.status}, records of {len(run.ranks)} of {ranks} ranks:\n{tail(run.stderr)}"]
    problems = [*judge_ranks(loop, run), *judge_output(loop, run, reference), *judge_files(run, reference)]
    if loop.exact:
        problems += judge_numbers(loop, run, reference)
    if loop.divided:
        problems += judge_division(loop, run, reference)
    if loop.said and not re.search(loop.said, run.stderr + "\n".join(run.stdout)):
        problems.append(f"(-) nothing said that matches {loop.said!r}")
    return problems


def judge_refusal(loop: Loop, run: Run) -> Iterator[str]:
    if run.status == 0:
        yield "(-) not refused"
    elif "not ended after" in run.stderr:
        yield f"(-) hung instead of being refused:\n{tail(run.stderr)}"
    elif not re.search(loop.refused, run.stderr):
        yield f"(-) refused without a message that matches {loop.refused!r}:\n{tail(run.stderr)}"


def judge_ranks(loop: Loop, run: Run) -> Iterator[str]:
    """(a) Bit for bit: what has been reduced is the same on all ranks."""
    first = chosen(loop, run.ranks[0])
    for rank, record in enumerate(run.ranks[1:], start=1):
        for name, problem in differences(chosen(loop, record), first, tolerance=0):
            yield f"(a) rank {rank} and rank 0: {name} {problem}"
        for name in loop.distinct:
            if same(record["values"][name], run.ranks[0]["values"][name]):
                yield f"(a) rank {rank} drew the same {name} as rank 0"


def judge_numbers(loop: Loop, run: Run, reference: Run) -> Iterator[str]:
    """(b) The numbers of one process that takes the batches of all ranks."""
    ours, theirs = chosen(loop, run.ranks[0]), chosen(loop, reference.ranks[0])
    for name, problem in differences(ours, theirs, loop.tolerance):
        yield f"(b) {name} {problem}"


def chosen(loop: Loop, record: dict[str, Any]) -> Facts:
    facts: Facts = {name: value for name, value in record["facts"].items() if not (loop.own and re.search(loop.own, name))}
    return facts | {name: record["values"].get(name) for name in loop.values}


def differences(ours: Facts, theirs: Facts, tolerance: float) -> Iterator[tuple[str, str]]:
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            yield name, f"only in {'the former' if name in ours else 'the latter'}"
            continue
        a, b = ours[name], theirs[name]
        if a is None or b is None or a.shape != b.shape:
            if a is not b:
                yield name, f"is {outline(a)}, not {outline(b)}"
        elif not same(a, b):
            error, largest = np.abs(a - b).max(), np.abs(b).max()
            if not error <= tolerance * largest + (TINY if tolerance else 0):
                yield name, f"differs by {error:.3g}, largest value {largest:.3g}"


def outline(value: np.ndarray | None) -> str:
    return "None" if value is None else f"an array of shape {value.shape}"


def same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is b if a is None or b is None else np.array_equal(a, b, equal_nan=True)


def judge_output(loop: Loop, run: Run, reference: Run) -> Iterator[str]:
    """(d) Lines once, and after an exact loop the very lines of the one process, losses included."""
    if run.stdout.count("AFTER") != 1:
        yield f"(d) what follows the block ran {run.stdout.count('AFTER')} times"
    if loop.exact and loop.same_output:
        for ours, theirs in zip(run.stdout, reference.stdout, strict=False):
            if ours != theirs:
                yield f"(d) printed {ours!r} for {theirs!r}"
                break
    if len(run.stdout) != len(reference.stdout):
        yield f"(d) {len(run.stdout)} lines printed, not {len(reference.stdout)}"


def judge_files(run: Run, reference: Run) -> Iterator[str]:
    """(d) The files of the one process, and no more calls of torch.save that wrote."""
    if run.files != reference.files:
        yield f"(d) files {run.files}, not {reference.files}"
    # A rank's private copy of a file (torchbus._files.shadows) is none of the script's files.
    saves = [sum("/torchbus-" not in path for path in record["saves"]) for record in run.ranks]
    if sum(saves) != len(reference.ranks[0]["saves"]):
        yield f"(d) files saved by each rank {saves}, not {len(reference.ranks[0]['saves'])} in all"


def judge_division(loop: Loop, run: Run, reference: Run) -> Iterator[str]:
    """(c) In each pass the ranks' training batches are shares of the one process's, and evaluation sees everything, over training data too."""
    theirs = passes_over(reference.ranks[0]["ledger"])
    ours = [passes_over(record["ledger"]) for record in run.ranks]
    trained = {entry["loader"] for entry in reference.ranks[0]["ledger"] if entry["grad"]} - set(loop.whole)
    for loader in sorted({loader for rank in ours for loader in rank} | theirs.keys()):
        expected, shares = theirs.get(loader, []), [rank.get(loader, []) for rank in ours]
        trains = [loader in trained and grad for grad in begun_with_gradients(reference.ranks[0]["ledger"], loader)]
        judge_trained = judge_shares if loop.same_order else judge_samples
        whole, divided = [[these(passes, trains, kind) for passes in [expected, *shares]] for kind in (False, True)]
        problems = [*judge_whole(whole[1:], whole[0]), *judge_trained(divided[1:], divided[0])]
        yield from (f"(c) {loader}: {problem}" for problem in problems)
        if any(len(passes) > len(expected) for passes in shares):
            yield f"(c) {loader}: {[len(passes) for passes in shares]} passes, not {len(expected)}"


def passes_over(ledger: Iterable[dict[str, Any]]) -> dict[str, list[Pass]]:
    """The passes over each data set, the batches of several workers in the order in which a loader hands them out."""
    workers: defaultdict[str, defaultdict[int, list[Pass]]] = defaultdict(lambda: defaultdict(list))
    for entry in ledger:
        passes = workers[entry["loader"]][entry["worker"]]
        if entry["new_pass"]:
            passes.append([])
        passes[-1].append(entry["samples"])
    return {loader: [*map(merge, zip_longest(*in_order(streams), fillvalue=[]))] for loader, streams in workers.items()}


def begun_with_gradients(ledger: Iterable[dict[str, Any]], loader: str) -> list[bool]:
    """For each pass over a data set whether gradients were on when it began (a worker always says so)."""
    return [entry["grad"] for entry in ledger if entry["loader"] == loader and entry["new_pass"] and not entry["worker"]]


def these(passes: list[Pass], trains: list[bool], kind: bool) -> list[Pass]:
    """Those that train, or those that do not."""
    return [one for one, trained in zip(passes, trains, strict=False) if trained is kind]


def in_order(streams: dict[int, list[Pass]]) -> list[list[Pass]]:
    return [streams[worker] for worker in sorted(streams)]


def merge(workers: Iterable[Pass]) -> Pass:
    return [batch for batches in zip_longest(*workers) for batch in batches if batch is not None]


def judge_whole(ranks: list[list[Pass]], expected: list[Pass]) -> Iterator[str]:
    for rank, passes in enumerate(ranks):
        if [sorted(flat(p)) for p in passes] != [sorted(flat(p)) for p in expected]:
            yield f"rank {rank} evaluated {[len(flat(p)) for p in passes]} samples, or not the right ones"


def judge_shares(ranks: list[list[Pass]], expected: list[Pass]) -> Iterator[str]:
    """Each batch of the one process is cut into consecutive shares, rank 0 first; a rank left without repeats one."""
    had: list[set[Any]] = [set() for _ in ranks]
    for number, batches in enumerate(expected):
        ours = [passes[number] if number < len(passes) else [] for passes in ranks]
        if any(len(p) > len(batches) for p in ours):
            yield f"pass {number}: {[len(p) for p in ours]} batches, not {len(batches)}"
        for step, batch in enumerate(batches):
            rest = batch
            for rank, share in enumerate(p[step] if step < len(p) else [] for p in ours):
                if rest and rest[: len(share)] == share:
                    rest = rest[len(share) :]
                    had[rank].update(share)
                elif rest or not had[rank].issuperset(share):
                    yield f"pass {number} step {step}: rank {rank} fetched {share}, of {batch}"
            if rest:
                yield f"pass {number} step {step}: nobody fetched {rest}, of {batch}"


def judge_samples(ranks: list[list[Pass]], expected: list[Pass]) -> Iterator[str]:
    """Each sample of a pass once, in whatever order; one that its own rank repeats weighs nothing."""
    for number, batches in enumerate(expected):
        fetched = Counter(i for passes in ranks for i in set(flat(passes[number] if number < len(passes) else [])))
        if fetched != Counter(flat(batches)):
            wrong = sorted((fetched - Counter(flat(batches))) + (Counter(flat(batches)) - fetched))
            yield f"pass {number}: lost, or fetched more than once: {wrong}"


def flat(batches: Pass) -> list[Any]:
    return [sample for batch in batches for sample in batch]


def tail(text: str, lines: int = 25) -> str:
    return "\n".join(text.splitlines()[-lines:])
