"""Computes shares of time and operators from the events of torch.profiler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import profile

from torchbus_profile.result import Operator, Profiled, Span, shares

MOST_OPERATORS = 10
STEP = "ProfilerStep*"  # the profiler's own name of all its steps
LOADER = "enumerate(DataLoader)#"
COLLECTIVES = ("c10d::", "_c10d_functional::", "gloo:", "nccl:", "mpi:", "ucc:", "xccl:")
KERNELS_OF_COLLECTIVES = ("nccl", "rccl", "oneccl")
NOT_COMPUTING = ("autograd::engine::", "torch::autograd::", "profiler::")
COMPILED = ("Torch-Compiled Region", "## Call CompiledFxGraph")
US_PER_S = 1e6


def read(profiler: profile, ranges: Collection[str], last_step: int, steps: int) -> Profiled:
    """Sum a recording up. ``ranges``: names of ``s.range``. ``steps``: how many it has."""
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
    else:  # the loader computes where the loop waits for it
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


def _window(events: Iterable[Any]) -> Span:
    """From the begin of the first recorded step to the end of the last one."""
    steps = [event.time_range for event in events if event.name == STEP and not _on_device(event)]
    starts, ends = [one.start for one in steps], [one.end for one in steps]
    return Span(min(starts, default=0.0), max(ends, default=0.0))


def _on_device(event: Any) -> bool:
    return bool(event.device_type != DeviceType.CPU)


def _is_collective(event: Any) -> bool:
    if _on_device(event):
        return any(name in event.name.lower() for name in KERNELS_OF_COLLECTIVES)
    return bool(event.name.startswith(COLLECTIVES))


def _computes(event: Any) -> bool:
    """Whether an event on a CPU is the work of an operation."""
    if event.is_async or event.name.startswith((*COLLECTIVES, *NOT_COMPUTING)):
        return False
    return "::" in event.name or event.name.startswith(COMPILED)


def _spans(events: Iterable[Any], wanted: Callable[[Any], bool]) -> list[Span]:
    return [Span(event.time_range.start, event.time_range.end) for event in events if wanted(event)]


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
