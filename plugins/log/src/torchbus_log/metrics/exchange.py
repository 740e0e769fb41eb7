"""How ranks exchange numbers at a log point: in one collective, which checks their names, too."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torchbus.plugin import Context, RanksDiverged

HEADER = 3  # step, digest of the keys, how many numbers
NUMBERS_AT_FIRST = 512


class Key(NamedTuple):
    """What a number stands for, so that ranks can compare. ``may_lack``: a rank may not have it."""

    name: str
    reduce: str
    step: int
    may_lack: bool = False


class Exchange:
    """Gives every rank the numbers of all ranks.

    The message has the same size on all ranks. It grows when all ranks need more.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._capacity = NUMBERS_AT_FIRST

    def rows(self, step: int, keys: Sequence[Key], numbers: list[float]) -> list[list[float]]:
        """Return the numbers of each rank, in rank order. All ranks call it.

        This takes one collective, or two if there are more numbers than ever before. Raises
        RanksDiverged on all ranks if their keys or their steps differ.
        """
        if self._session.world_size == 1:
            return [numbers]
        header = [float(step), _digest(keys), float(len(numbers))]
        gathered = self._gather(step, header, numbers)
        if any(row[:HEADER] != header for row in gathered):
            return self._completed(step, keys, numbers)
        if len(numbers) > self._capacity:
            self._capacity = 1 << (len(numbers) - 1).bit_length()
            gathered = self._gather(step, header, numbers)
        return [row[HEADER : HEADER + len(numbers)] for row in gathered]

    def _completed(self, step: int, keys: Sequence[Key], numbers: list[float]) -> list[list[float]]:
        """Fill in zeros for ranks that had no batch of a divided evaluation.

        Raises RanksDiverged for any other difference.
        """
        answers = self._session.all_gather_object((step, [tuple(key) for key in keys], numbers))
        steps = {rank_step for rank_step, *_ in answers}
        certain = {tuple(key for key in theirs if not key[3]) for _, theirs, _ in answers}
        if len(steps) > 1 or len(certain) > 1:
            self._raise_diverged(step, keys)
        columns = [
            dict(zip(_numbered(theirs), _pairs(values), strict=False))
            for _, theirs, values in answers
        ]
        return [
            [number for key in _numbered(keys) for number in column.get(key, (0.0, 0.0))]
            for column in columns
        ]

    def _gather(self, step: int, header: list[float], numbers: list[float]) -> list[list[float]]:
        message = torch.zeros(HEADER + self._capacity, dtype=torch.float64)
        sent = [*header, *(numbers if len(numbers) <= self._capacity else [])]
        message[: len(sent)] = torch.tensor(sent, dtype=torch.float64)
        mine = message.to(self._session.device)
        gathered = [torch.empty_like(mine) for _ in range(self._session.world_size)]
        job = self._session.job
        if job is not None:
            job.wait_in("the log point at step", step)
        dist.all_gather(gathered, mine)
        answers: list[list[float]] = torch.stack(gathered).tolist()
        if job is not None:
            job.go_on()
        return answers

    def _raise_diverged(self, step: int, keys: Sequence[Key]) -> None:
        """Gather what the ranks have, and raise RanksDiverged, which names the difference."""
        answers = self._session.all_gather_object((step, [tuple(key) for key in keys]))
        steps = [rank_step for rank_step, _ in answers]
        if len(set(steps)) > 1:
            raise RanksDiverged(
                f"the ranks came to a log point at different steps: {_by_rank(steps)}: all ranks"
                " must make the same steps"
            )
        names = [[name for name, *_ in theirs] for _, theirs in answers]
        _refuse_unequal_counts(step, [Counter(theirs) for theirs in names])
        odd = next(
            key
            for ours in zip(*(theirs for _, theirs in answers), strict=True)
            if len(set(ours)) > 1
            for key in ours
        )
        raise RanksDiverged(
            f"s.log({odd[0]!r}) came in another order, at another step or with another reduce= on"
            " other ranks: call it alike"
        )


def _refuse_unequal_counts(step: int, counts: Sequence[Counter[str]]) -> None:
    for name in sorted(set().union(*counts)):
        values = [count[name] for count in counts]
        if len(set(values)) > 1:
            raise RanksDiverged(
                f"s.log({name!r}) is to be reduced over ranks, but the number of its values up"
                f" to step {step} is {_by_rank(values)}: call it on every rank alike, or with"
                " sync_dist=False"
            )


def _numbered(keys: Sequence[Sequence[object]]) -> list[tuple[tuple[object, ...], int]]:
    """Number the occurrences of each key."""
    seen: Counter[tuple[object, ...]] = Counter()
    found = []
    for key in map(tuple, keys):
        found.append((key, seen[key]))
        seen[key] += 1
    return found


def _pairs(numbers: list[float]) -> list[tuple[float, float]]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _digest(keys: Sequence[Key]) -> float:
    """Return a digest that float64 represents exactly."""
    return float(
        int.from_bytes(
            hashlib.blake2b(repr([tuple(key) for key in keys]).encode(), digest_size=6).digest(),
            "big",
        )
    )


def _by_rank(values: Sequence[int]) -> str:
    return ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
