"""How ranks reduce numbers at a log point: in one collective, which checks their names, too."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus.plugin import Context, RanksDiverged

from torchbus_log.totals import Metric, Value, combine, to_host, to_value


def local_values(ready: Sequence[LoggedValue]) -> list[float]:
    """Return this rank's value of each record."""
    return [
        merged(record.reduce, [pair]) for record, pair in zip(ready, numbers_of(ready), strict=True)
    ]


def over_ranks(
    exchange: NumberExchange,
    steps: int,
    ready: Sequence[LoggedValue],
    metrics: Sequence[tuple[str, Metric, int]],
) -> list[float]:
    """Return the value of each record, reduced over ranks if ``sync``. All ranks must call this.

    The exchange also checks that all ranks have the same metric objects.
    """
    mine = numbers_of(ready)
    shared = [index for index, record in enumerate(ready) if record.sync]
    keys = [
        Key(ready[index].name, ready[index].reduce, ready[index].step, ready[index].may_lack)
        for index in shared
    ]
    keys += [Key(name, "metric", step) for name, _, step in metrics]
    reduced = exchange.reduced(steps, keys, [mine[index] for index in shared])
    values = [merged(record.reduce, [pair]) for record, pair in zip(ready, mine, strict=True)]
    for index, value in zip(shared, reduced, strict=True):
        values[index] = value
    return values


def computed(
    name: str, metric: Metric, step: int, epoch: int | None
) -> tuple[list[LoggedValue], dict[str, Tensor]]:
    """Return the values of a metric object, which reduces itself over ranks.

    The first result has the values that are one number. The second has other tensors with 1 or 2
    dimensions by name, such as a confusion matrix.
    """
    value = metric.compute()
    named = value if isinstance(value, Mapping) else {name: value}
    more = {
        one: found
        for one, found in named.items()
        if isinstance(found, Tensor) and found.numel() != 1 and found.dim() in (1, 2)
    }
    return [
        LoggedValue(one, step, epoch, (to_value(one, found),), 1.0, 1.0, "mean", False, False)
        for one, found in named.items()
        if one not in more
    ], more


EXTREMES = {"max": 1.0, "min": -1.0}
PART = 2**19  # a sum of squares of numbers below this is exact, for up to 2**15 ranks
ALIKE = 8  # slots for four numbers that must be equal on all ranks, and for their squares
NUMBERS_AT_FIRST = 512
Pair = tuple[float, float]
"""A number, and the number of samples that it stands for."""


class Key(NamedTuple):
    """The identity of a number, compared between ranks. If ``may_lack``, a rank may not have it."""

    name: str
    reduce: str
    step: int
    may_lack: bool = False


class NumberExchange:
    """Reduces numbers over ranks, in a message whose size does not depend on the number of ranks.

    The message has the same size on all ranks, and grows when all ranks need more.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._capacity = NUMBERS_AT_FIRST

    def reduced(self, step: int, keys: Sequence[Key], mine: Sequence[Pair]) -> list[float]:
        """Return the number of each key over all ranks. All ranks must call this.

        ``mine`` are this rank's numbers for the first keys; the other keys are only compared. This
        takes one collective, another for extremes, and another if there are more numbers than ever
        before. Raises RanksDiverged on all ranks if their keys or their steps differ.
        """
        if self._session.world_size == 1:
            return [merged(key.reduce, [pair]) for key, pair in zip(keys, mine, strict=False)]
        numbers = [
            number for key, pair in zip(keys, mine, strict=False) for number in _sent(key, pair)
        ]
        reported = _alike(step, _digest(keys))
        summed = self._summed(
            step, [*reported, *(numbers if len(numbers) <= self._capacity else [])]
        )
        if not self._all_reported(reported, summed):
            return self._completed(step, keys, mine)
        if len(numbers) > self._capacity:
            self._capacity = 1 << (len(numbers) - 1).bit_length()
            summed = self._summed(step, [*reported, *numbers])
        pairs = list(zip(summed[ALIKE::2], summed[ALIKE + 1 :: 2], strict=True))
        return self._with_extremes(step, keys, mine, pairs[: len(mine)])

    def _with_extremes(
        self, step: int, keys: Sequence[Key], mine: Sequence[Pair], summed: Sequence[Pair]
    ) -> list[float]:
        """Return the values of all keys. Extremes need another collective."""
        found = [merged(key.reduce, [pair]) for key, pair in zip(keys, summed, strict=False)]
        places = [place for place in range(len(mine)) if keys[place].reduce in EXTREMES]
        if places:
            signs = [EXTREMES[keys[place].reduce] for place in places]
            signed = [
                _or_empty(sign * mine[place][0], mine[place][1])
                for place, sign in zip(places, signs, strict=True)
            ]
            largest = self._all_reduced(step, signed, dist.ReduceOp.MAX)
            for place, sign, number in zip(places, signs, largest, strict=True):
                is_nan, weight = summed[place]
                found[place] = sign * number if weight and not is_nan else math.nan
        return found

    def _completed(self, step: int, keys: Sequence[Key], mine: Sequence[Pair]) -> list[float]:
        """Fill in zeros for ranks that had no batch of a divided evaluation.

        Raises RanksDiverged for any other difference.
        """
        answers = self._session.all_gather_object((step, [tuple(key) for key in keys], list(mine)))
        steps = {rank_step for rank_step, *_ in answers}
        certain = {tuple(key for key in theirs if not key[3]) for _, theirs, _ in answers}
        if len(steps) > 1 or len(certain) > 1:
            self._raise_diverged(step, keys)
        columns = [
            dict(zip(_numbered(theirs), pairs, strict=False)) for _, theirs, pairs in answers
        ]
        return [
            merged(key.reduce, [column.get(numbered, (0.0, 0.0)) for column in columns])
            for key, numbered, _ in zip(keys, _numbered(keys), mine, strict=False)
        ]

    def _all_reported(self, reported: Sequence[float], summed: Sequence[float]) -> bool:
        """Whether all ranks have sent the same numbers, judged by their sum."""
        ranks = self._session.world_size
        return all(ranks * one == total for one, total in zip(reported, summed, strict=False))

    def _summed(self, step: int, sent: list[float]) -> list[float]:
        padding = ALIKE + self._capacity - len(sent)
        return self._all_reduced(step, [*sent, *[0.0] * padding], dist.ReduceOp.SUM)

    def _all_reduced(
        self, step: int, sent: list[float], op: dist.ReduceOp.RedOpType
    ) -> list[float]:
        message = torch.tensor(sent, dtype=torch.float64).to(self._session.device)
        job = self._session.job
        if job is not None:
            job.wait_in("the log point at step", step)
        dist.all_reduce(message, op)
        answer: list[float] = message.tolist()
        if job is not None:
            job.go_on()
        return answer

    def _raise_diverged(self, step: int, keys: Sequence[Key]) -> None:
        """Gather the keys of all ranks, and raise RanksDiverged, which names the difference."""
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
            " other ranks: call it in the same way on all ranks"
        )


def _refuse_unequal_counts(step: int, counts: Sequence[Counter[str]]) -> None:
    for name in sorted(set().union(*counts)):
        values = [count[name] for count in counts]
        if len(set(values)) > 1:
            raise RanksDiverged(
                f"s.log({name!r}) is to be reduced over ranks, but the number of its values up"
                f" to step {step} is {_by_rank(values)}: call it on every rank, or with"
                " sync_dist=False"
            )


def _numbered(keys: Sequence[Sequence[object]]) -> list[tuple[tuple[object, ...], int]]:
    """Return each key with the number of its earlier occurrences."""
    seen: Counter[tuple[object, ...]] = Counter()
    found = []
    for key in map(tuple, keys):
        found.append((key, seen[key]))
        seen[key] += 1
    return found


def _sent(key: Key, pair: Pair) -> Pair:
    """Return what this rank adds to the sums: its number or, for an extreme, whether it is NaN."""
    number, weight = pair
    if not weight:
        return 0.0, 0.0
    return (float(math.isnan(number)) if key.reduce in EXTREMES else number), weight


def _or_empty(number: float, weight: float) -> float:
    return -math.inf if not weight or math.isnan(number) else number


def _alike(*numbers: int) -> list[float]:
    """Return whole numbers of up to 38 bits in two parts each, and the squares of these parts."""
    parts = [float(part) for number in numbers for part in divmod(number % PART**2, PART)]
    return [*parts, *[part * part for part in parts]]


def _digest(keys: Sequence[Key]) -> int:
    reported = repr([tuple(key) for key in keys]).encode()
    return int.from_bytes(hashlib.blake2b(reported, digest_size=6).digest(), "big")


def _by_rank(values: Sequence[int]) -> str:
    return ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))


class LoggedValue(NamedTuple):
    """One name's contribution to a log point.

    ``parts`` are numbers, or 0-dim tensors that are still on their device. ``reduce`` combines them
    to one number, which is multiplied by ``scale`` and stands for ``weight`` samples. If ``sync``,
    this number is reduced over ranks. If ``may_lack``, other ranks may have no value of this name.
    """

    name: str
    step: int
    epoch: int | None
    parts: Sequence[Value]
    scale: float
    weight: float
    reduce: str
    sync: bool
    prog_bar: bool
    may_lack: bool = False


class LogLine(NamedTuple):
    """The numbers of one step, as loggers get them."""

    step: int
    epoch: int | None
    metrics: dict[str, float]
    prog_bar: set[str]


def numbers_of(records: Sequence[LoggedValue]) -> list[tuple[float, float]]:
    """Return the total of each record, and the samples that it stands for.

    Tensors are copied to the host together, in one copy for each device and dtype.
    """
    host = iter(to_host(part for record in records for part in record.parts))
    totals = [
        combine([next(host) for _ in record.parts], record.reduce) * record.scale
        for record in records
    ]
    return [(total, record.weight) for total, record in zip(totals, records, strict=True)]


def merged(reduce: str, numbers: Iterable[tuple[float, float]]) -> float:
    """Combine the numbers of several ranks. Numbers that stand for no samples are left out."""
    there = [(total, weight) for total, weight in numbers if weight]
    if not there:
        return 0.0 if reduce == "sum" else float("nan")
    total = combine([total for total, _ in there], reduce)
    return total / sum(weight for _, weight in there) if reduce == "mean" else total


def lines(records: Iterable[LoggedValue], values: Iterable[float]) -> list[LogLine]:
    """Group numbers by step, in order. A name's second value at one step begins a new line."""
    found: dict[int, list[LogLine]] = {}
    seen: Counter[tuple[int, str]] = Counter()
    for record, value in zip(records, values, strict=True):
        ones = found.setdefault(record.step, [])
        place = seen[record.step, record.name]
        seen[record.step, record.name] += 1
        if place == len(ones):
            ones.append(LogLine(record.step, record.epoch, {}, set()))
        line = ones[place]
        line.metrics[record.name] = value
        if record.prog_bar:
            line.prog_bar.add(record.name)
    return [line for step in sorted(found) for line in found[step]]
