"""Judges a run of the zoo's harness: whether the numbers, the data and the files agree with those
of one process.

A verdict is a list of problems, each led by the letter of what it breaks:
(a) ranks agree, (b) numbers of one process, (c) the work was divided, (d) files and output once;
(-) for the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from harness import Run
from judgement_division import judge_division
from loop import Loop

from torchbus_verify.compare import output
from torchbus_verify.compare.difference import RelativeDifference, gap
from torchbus_verify.record.writing import RankRecord, Stored

TINY = 1e-12
"""Below this, a difference is rounding whatever the tensor's scale: a bias whose gradient is zero
but for that.
"""

Facts = dict[str, Stored | None]
"""Parameters, buffers, gradients, rates and counts by name."""


def judge(loop: Loop, run: Run, reference: Run, ranks: int) -> list[str]:
    """All that is wrong with a run, `reference` being the one process to compare it with; nothing
    when all is well.
    """
    if loop.refused:
        return list(judge_refusal(loop, run))
    if run.status or len(run.ranks) != ranks:
        return [
            f"(-) exit status {run.status}, records of {len(run.ranks)} of {ranks} ranks:\n{tail(run.stderr)}"
        ]
    problems = [
        *judge_ranks(loop, run),
        *judge_output(loop, run, reference),
        *judge_files(loop, run, reference),
    ]
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
    first, drawn = chosen(loop, run.ranks[0]), values(run.ranks[0])
    for rank, record in enumerate(run.ranks[1:], start=1):
        for one in beyond(chosen(loop, record), first, tolerance=0, tiny=0):
            yield f"(a) rank {rank} and rank 0: {words(one)}"
        for name in loop.distinct:
            if not gap(name, values(record), drawn).relative:
                yield f"(a) rank {rank} drew the same {name} as rank 0"


def judge_numbers(loop: Loop, run: Run, reference: Run) -> Iterator[str]:
    """(b) The numbers of one process that takes the batches of all ranks."""
    ours, theirs = chosen(loop, run.ranks[0]), chosen(loop, reference.ranks[0])
    for one in beyond(ours, theirs, loop.tolerance, TINY):
        yield f"(b) {words(one)}"


def chosen(loop: Loop, record: RankRecord) -> Facts:
    end = record.of("end")[-1]
    facts = {
        name: value
        for name, value in record.tensors(end["facts"]).items()
        if not (loop.own and re.search(loop.own, name))
    }
    return facts | {name: values(record).get(name) for name in loop.values}


def values(record: RankRecord) -> Facts:
    return record.tensors(record.of("end")[-1]["values"])


def beyond(
    ours: Facts, theirs: Facts, tolerance: float, tiny: float
) -> Iterator[RelativeDifference]:
    for name in sorted(ours.keys() | theirs.keys()):
        found = gap(name, ours, theirs, tiny)
        if not found.relative <= tolerance:
            yield found


def words(one: RelativeDifference) -> str:
    return f"{one.name} {one.text or f'differs by {one.relative:.3g}'}"


def judge_output(loop: Loop, run: Run, reference: Run) -> Iterator[str]:
    """(d) Lines once, and after an exact loop the very lines of the one process, losses
    included.
    """
    if run.stdout.count("AFTER") != 1:
        yield f"(d) what follows the block ran {run.stdout.count('AFTER')} times"
    if loop.exact and loop.same_output:
        for line in output.compare_printed(run.stdout, reference.stdout):
            yield f"(d) printed {line.ours!r} for {line.theirs!r}"
    if len(run.stdout) != len(reference.stdout):
        yield f"(d) {len(run.stdout)} lines printed, not {len(reference.stdout)}"


def judge_files(loop: Loop, run: Run, reference: Run) -> Iterator[str]:
    """(d) The files of the one process, whole, with its tensors after an exact loop; and no more
    calls of torch.save that wrote.
    """
    same_numbers = loop.exact and loop.same_output
    for file in output.compare(run, reference, None, loop.tolerance if same_numbers else math.inf):
        yield f"(d) {file.name} {file.text}"
    # What another rank writes into an open file has no name, and is none of the script's files.
    saved = [record.of("end")[-1]["saves"] for record in run.ranks]
    saves = [sum("/torchbus-" not in path for path in paths) for paths in saved]
    expected = len(reference.ranks[0].of("end")[-1]["saves"])
    if sum(saves) != expected:
        yield f"(d) files saved by each rank {saves}, not {expected} in all"


def tail(text: str, lines: int = 25) -> str:
    return "\n".join(text.splitlines()[-lines:])
