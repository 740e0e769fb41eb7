"""The result of a recording: time of computing, and of waiting for ranks, data or the host."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from torch.autograd import DeviceType
from torch.profiler import profile
from torchbus.plugin import Context, SharedStore

from torchbus_cli.parser import table

MOST_OPERATORS = 10
STEP = "ProfilerStep*"  # the profiler's name for each of its steps
LOADER = "enumerate(DataLoader)#"
COLLECTIVES = ("c10d::", "_c10d_functional::", "gloo:", "nccl:", "mpi:", "ucc:", "xccl:")
KERNELS_OF_COLLECTIVES = ("nccl", "rccl", "oneccl")
NOT_COMPUTING = ("autograd::engine::", "torch::autograd::", "profiler::")
COMPILED = ("Torch-Compiled Region", "## Call CompiledFxGraph")
US_PER_S = 1e6


def read(profiler: profile, ranges: Collection[str], last_step: int, steps: int) -> Profiled:
    """Summarise a recording of ``steps`` steps. ``ranges`` are the names of ``s.range``."""
    events: Sequence[Any] = profiler.events() or ()
    window = _window(events)
    seconds = (window.end_us - window.start_us) / US_PER_S
    host = [event for event in events if not _on_device(event)]
    names = {event.name for event in host}  # a device repeats the ranges of the host
    device = [event for event in events if _on_device(event) and event.name not in names]
    data = _spans(host, lambda event: event.name.startswith(LOADER))
    if device:
        kinds = {
            "compute": _spans(device, lambda event: not _is_collective(event)),
            "ranks": _spans(device, _is_collective),
            "data": data,
        }
    else:  # on a CPU, the loader computes while the loop waits
        kinds = {
            "data": data,
            "compute": _spans(host, _computes),
            "ranks": _spans(host, _is_collective),
        }
    return Profiled(
        last_step - steps + 1,
        last_step,
        seconds,
        shares(window, kinds),
        tuple(_operators(host, seconds, on_device=bool(device))),
        tuple(_ranges(host, ranges, seconds)),
        "",
    )


def _window(events: Iterable[Any]) -> ProfilerSpan:
    """Return the time from the start of the first recorded step to the end of the last one."""
    steps = [event.time_range for event in events if event.name == STEP and not _on_device(event)]
    starts, ends = [one.start for one in steps], [one.end for one in steps]
    return ProfilerSpan(min(starts, default=0.0), max(ends, default=0.0))


def _on_device(event: Any) -> bool:
    return bool(event.device_type != DeviceType.CPU)


def _is_collective(event: Any) -> bool:
    if _on_device(event):
        return any(name in event.name.lower() for name in KERNELS_OF_COLLECTIVES)
    return bool(event.name.startswith(COLLECTIVES))


def _computes(event: Any) -> bool:
    """Whether a CPU event is an operation that computes."""
    if event.is_async or event.name.startswith((*COLLECTIVES, *NOT_COMPUTING)):
        return False
    return "::" in event.name or event.name.startswith(COMPILED)


def _spans(events: Iterable[Any], wanted: Callable[[Any], bool]) -> list[ProfilerSpan]:
    return [
        ProfilerSpan(event.time_range.start, event.time_range.end)
        for event in events
        if wanted(event)
    ]


def _operators(host: Iterable[Any], seconds: float, on_device: bool) -> list[Operator]:
    found = [
        (
            event.name,
            event.self_device_time_total if on_device else event.self_cpu_time_total,
        )
        for event in host
        if _computes(event) or (_is_collective(event) and not event.is_async)
    ]
    return sorted(_summed(found, seconds), key=lambda one: -one.seconds)[:MOST_OPERATORS]


def _ranges(host: Iterable[Any], names: Collection[str], seconds: float) -> list[Operator]:
    found = [
        (event.name, event.time_range.end - event.time_range.start)
        for event in host
        if event.name in names
    ]
    return sorted(_summed(found, seconds))


def _summed(found: Iterable[tuple[str, float]], seconds: float) -> list[Operator]:
    times_us: dict[str, list[float]] = defaultdict(list)
    for name, time_us in found:
        times_us[name].append(time_us)
    return [
        Operator(name, len(all_us), elapsed_s, elapsed_s / seconds if seconds else 0.0)
        for name, all_us in times_us.items()
        for elapsed_s in (sum(all_us) / US_PER_S,)
    ]


Row = tuple[str, ...]


def of_ranks(parts: Mapping[int, tuple[float, Shares]]) -> list[Row]:
    """Return a table with a row for each rank, below the heads."""
    heads = ("rank", "ms", *Shares._fields)
    return [
        heads,
        *(
            (str(rank), f"{1e3 * seconds:.1f}", *map(_percent, shares))
            for rank, (seconds, shares) in parts.items()
        ),
    ]


def of_operators(word: str, operators: Sequence[Operator]) -> list[Row]:
    """Return a table with a row for each operator or range, below the heads."""
    return [
        (word, "calls", "ms", "share"),
        *(
            (one.name, str(one.calls), f"{1e3 * one.seconds:.3f}", _percent(one.share))
            for one in operators
        ),
    ]


def text(found: Profiled, parts: Mapping[int, tuple[float, Shares]]) -> str:
    """Return the text that rank 0 prints at the end of the session."""
    tables = [of_ranks(parts), of_operators("operator", found.operators)]
    tables += [of_operators("range", found.ranges)] if found.ranges else []
    where = f"; traces beside {found.trace}" if found.trace else ""
    heading = f"profile: steps {found.first_step} to {found.last_step}{where}"
    return "\n".join((heading, *(table(rows) for rows in tables if rows[1:])))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


class StepTimeExchange:
    """Exchanges the time and shares of each rank's steps: ranks publish, and rank 0 reads."""

    def __init__(self, session: Context) -> None:
        self._rank, self._count = session.rank, session.world_size
        self._store: SharedStore | None = (
            session.world.shared.within("profile") if session.world_size > 1 else None
        )

    def publish(self, found: Profiled) -> None:
        """Write this rank's time and shares to the store, without waiting."""
        if self._store is not None:
            reported = json.dumps([found.last_step, found.seconds, *found.shares])
            self._store.set(str(self._rank), reported)

    def known(self, local: Profiled) -> dict[int, tuple[float, Shares]]:
        """Return seconds and shares of the same steps, by rank, once all ranks have published.

        Until then, return only this rank's. The store answers for all ranks at once.
        """
        keys = [str(rank) for rank in range(self._count)]
        reported = None if self._store is None else self._store.read_all(keys)
        found = {self._rank: (local.seconds, local.shares)}
        for rank, (step, seconds, *parts) in enumerate(map(json.loads, reported or ())):
            if step == local.last_step:
                found[rank] = seconds, Shares(*parts)
        return dict(sorted(found.items()))


class Operator(NamedTuple):
    """An operator, or a range of ``s.range``.

    ``calls`` is the number in the recorded steps. ``seconds`` of an operator is its self time, on
    an accelerator that of its kernels; of a range it is the time from start to end on the host.
    ``share`` is the part of the recorded time, from 0 to 1.
    """

    name: str
    calls: int
    seconds: float
    share: float


@dataclass(frozen=True)
class Profiled:
    """The recorded steps, from ``first_step`` to ``last_step``.

    ``seconds`` is their time with the profiler, and ``shares`` divides it. ``operators`` are the
    ten with the longest self time. ``ranges`` are those of ``s.range``, sorted by name. ``trace``
    is the path of the trace, or "" if it could not be written.
    """

    first_step: int
    last_step: int
    seconds: float
    shares: Shares
    operators: tuple[Operator, ...]
    ranges: tuple[Operator, ...]
    trace: str


class ProfilerSpan(NamedTuple):
    """A span of time, in microseconds of the profiler's clock."""

    start_us: float
    end_us: float


class Shares(NamedTuple):
    """Parts of the recorded time, from 0 to 1, which add up to 1.

    ``compute``: operations ran. ``ranks``: only a collective ran. ``data``: the loop waited for its
    loader. ``host``: none of these, so Python ran, or the device waited for Python.
    """

    compute: float
    ranks: float
    data: float
    host: float


def shares(window: ProfilerSpan, spans: Mapping[str, Iterable[ProfilerSpan]]) -> Shares:
    """Divide the time of a window among the kinds of spans. Where kinds overlap, the first counts.

    ``spans`` has the kinds "compute", "ranks" and "data", in the order of precedence. The remaining
    time is "host".
    """
    elapsed = dict.fromkeys(Shares._fields, 0.0)
    for length_us, kinds in _stretches(window, spans):
        elapsed[next((kind for kind in spans if kind in kinds), "host")] += length_us
    whole = sum(elapsed.values())
    return Shares(**{kind: part / whole if whole else 0.0 for kind, part in elapsed.items()})


def _stretches(
    window: ProfilerSpan, spans: Mapping[str, Iterable[ProfilerSpan]]
) -> Iterator[tuple[float, set[str]]]:
    """Yield the length of each interval in which the same kinds run, and these kinds."""
    changes: list[tuple[float, str, int]] = [(edge, "", 0) for edge in window]
    for kind, found in spans.items():
        for start, end in found:
            start, end = max(start, window.start_us), min(end, window.end_us)
            if start < end:
                changes += [(start, kind, 1), (end, kind, -1)]
    running = dict.fromkeys(spans, 0)
    for (time_us, kind, change), (next_us, _, _) in pairwise(sorted(changes)):
        if kind:
            running[kind] += change
        yield next_us - time_us, {kind for kind, count in running.items() if count}
