"""``lint=True``: finds lines of the loop that slow it down, and warns of each once.

Without it, nothing in torch is replaced.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from types import FrameType

import torch
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset
from torchbus.compat.python import current_frame
from torchbus.plugin import Context, hookimpl
from torchbus.runtime.steps import StepCounter
from torchbus.runtime.user_code import outwards

from torchbus_device import accelerators
from torchbus_gpu.monitor import Monitor
from torchbus_gpu.users_code import SourceLine, is_users, line_of, loader_line


def listeners(session: Context, monitor: Monitor) -> list[tuple[str, object]]:
    """Return the listeners, and replace methods of torch until the session ends."""
    steps = session.steps.follow()
    for owner, name, make in (
        *Synchronisation(steps, session.device).replacements(),
        *EmptyCache(steps).replacements(),
        *RetainedGradients(steps).replacements(),
    ):
        session.on_close.enter_context(replaced(owner, name, make))
    return [
        ("dataset", ObjectsInDataset(session)),
        ("loader", LoaderAdvice(session, monitor)),
    ]


PASSES_ON = (inspect.getfile(torch.Tensor.__format__),)  # it calls item() for an f-string


@dataclass
class _Site:
    first_step: int
    last_step: int
    steps: int = 1
    warned: bool = False


class Sites:
    """Counts the steps in which each line makes a slow call, and warns once of frequent ones.

    Frequent means in ``least_steps`` steps, and in at least ``part`` of all steps since the first.
    Only calls of the user's own code count, and not those of a dataset that makes a sample. A
    process that the loop forks does not warn.
    """

    def __init__(
        self, steps: StepCounter, message: Callable[[str], str], least_steps: int, part: float
    ) -> None:
        self._steps = steps
        self._message = message
        self._least_steps = least_steps
        self._part = part
        self._pid = os.getpid()
        self._sites: dict[SourceLine, _Site] = {}

    def hit(self, what: str) -> None:
        """The replacement of a method was called. ``what`` is the method's name."""
        frame = _caller(current_frame(2))
        if not is_users(frame) or os.getpid() != self._pid:
            return
        line, step = SourceLine(frame.f_code.co_filename, frame.f_lineno), self._steps.count
        site = self._sites.get(line)
        if site is None:
            self._sites[line] = _Site(step, step, warned=loader_line(outwards(frame)) is not None)
        elif not site.warned and site.last_step != step:
            site.last_step = step
            site.steps += 1
            site.warned = self._is_often(site) and self._warn(line, what)

    def _is_often(self, site: _Site) -> bool:
        return site.steps >= self._least_steps and site.steps >= self._part * (
            site.last_step - site.first_step + 1
        )

    def _warn(self, line: SourceLine, what: str) -> bool:
        warnings.warn_explicit(self._message(what), UserWarning, line.file, line.number)
        return True


def _caller(frame: FrameType) -> FrameType:
    while frame.f_back is not None and (
        frame.f_code.co_filename in PASSES_ON
        or (frame.f_globals.get("__name__") or "").startswith("torchbus.patches")
    ):
        frame = frame.f_back
    return frame


Make = Callable[[Callable[..., object]], Callable[..., object]]
Replacement = tuple[object, str, Make]
"""An owner, the name of its method, and what makes the new method of the original one."""


@contextmanager
def replaced(owner: object, name: str, make: Make) -> Iterator[None]:
    """Replace ``owner.name`` by ``make(original)`` inside the block."""
    defined, original = vars(owner).get(name), getattr(owner, name)
    ours = functools.update_wrapper(make(original), original)
    setattr(owner, name, ours)
    try:
        yield
    finally:
        if vars(owner).get(name) is ours:  # leave what other code has replaced since
            setattr(owner, name, defined) if defined is not None else delattr(owner, name)


WAITING = ("item", "cpu", "numpy", "tolist", "__float__", "__int__", "__bool__")
SYNC_STEPS, SYNC_PART = 20, 0.9
SPELLED = {"__float__": "float(...)", "__int__": "int(...)", "__bool__": "a condition"}


class Synchronisation:
    """Warns of a line that calls ``.item()`` or the like in 20 steps, and in nearly every one.

    Only tensors on the session's device count.
    """

    def __init__(self, steps: StepCounter, device: torch.device) -> None:
        self._sites = Sites(steps, self._message, SYNC_STEPS, SYNC_PART)
        self._device = device.type

    def replacements(self) -> list[Replacement]:
        return [(torch.Tensor, name, self._noticing(name)) for name in WAITING]

    def _noticing(self, name: str) -> Make:
        hit, device, spelled = self._sites.hit, self._device, SPELLED.get(name, f".{name}()")

        def make(original: Callable[..., object]) -> Callable[..., object]:
            def method(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
                if tensor.device.type == device:
                    hit(spelled)
                return original(tensor, *args, **kwargs)

            return method

        return make

    def _message(self, what: str) -> str:
        costs = (
            "the host waits until the GPU has done all that is queued"
            if self._device != "cpu"
            else "on a GPU this waits for all that is queued"
        )
        return (
            f"{what} of a tensor in every step: {costs}. Keep the value on the device (detach() it,"
            " add it up) and read it every 50 steps or so, or give the tensor to s.log"
        )


CACHE_STEPS, CACHE_PART = 5, 0.01


class EmptyCache:
    """Warns of a line that calls ``empty_cache`` in five steps, and in at least every hundredth."""

    def __init__(self, steps: StepCounter) -> None:
        self._sites = Sites(steps, _message, CACHE_STEPS, CACHE_PART)

    def replacements(self) -> list[Replacement]:
        return [(one, "empty_cache", self._noticing(name)) for name, one in _modules().items()]

    def _noticing(self, name: str) -> Make:
        def make(original: Callable[[], object]) -> Callable[[], None]:
            def empty_cache() -> None:
                self._sites.hit(f"torch.{name}.empty_cache()")
                original()

            return empty_cache

        return make


def _modules() -> dict[str, object]:
    """The modules of devices with an ``empty_cache``, by name."""
    every = {name: accelerators.module(name) for name in (*accelerators.known(), "accelerator")}
    return {name: one for name, one in every.items() if hasattr(one, "empty_cache")}


def _message(what: str) -> str:
    return (
        f"{what} in the loop: it waits for the GPU, and every allocation afterwards asks the driver"
        " again. Leave it out: memory in the cache is free for your own tensors"
    )


MANY_OBJECTS = 1_000_000
FEWEST_WORKERS = 2
LOOKED_AT = 100
CONTAINERS = (list, tuple, dict, set)
Container = list[object] | tuple[object, ...] | dict[object, object] | set[object]


class ObjectsInDataset:
    """Warns of a dataset that holds many Python objects, because each worker copies them.

    Reading an object writes its reference count. So a forked worker copies the memory page of each
    object that it reads (https://github.com/pytorch/pytorch/issues/13246).
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._seen: set[int] = set()

    @hookimpl
    def loader_opened(self, loader: DataLoader[object]) -> None:
        if (
            loader.num_workers < FEWEST_WORKERS
            or id(loader) in self._seen
            or not self._session.captures(loader)
        ):
            return
        self._seen.add(id(loader))
        count, where = max(holdings(loader.dataset), default=(0, ""))
        if count >= MANY_OBJECTS:
            line = line_of(outwards(current_frame(0))) or SourceLine("torchbus-gpu", 1)
            text = (
                f"{where} holds about {count:,} Python objects, and each of the"
                f" {loader.num_workers} workers of this loader gets a copy of them as it reads:"
                " hold numpy arrays, tensors or an Arrow table instead (strings as one array of"
                " bytes with offsets)"
            )
            warnings.warn_explicit(text, UserWarning, line.file, line.number)


def holdings(dataset: object) -> Iterator[tuple[int, str]]:
    """Yield the number of objects in each container of a dataset, and the container's name.

    Containers are attributes of the dataset, or of datasets in it.
    """
    for attribute, value in getattr(dataset, "__dict__", {}).items():
        if isinstance(value, CONTAINERS):
            yield objects_in(value), f"{type(dataset).__name__}.{attribute}"
        inner = value if isinstance(value, list | tuple) else [value]
        for part in islice(inner, LOOKED_AT):
            if isinstance(part, Dataset) and part is not dataset:
                yield from holdings(part)


def objects_in(container: Container) -> int:
    """Estimate how many objects a container holds, from its first hundred."""
    values = container.values() if isinstance(container, dict) else container
    first = list(islice(values, LOOKED_AT))
    inside = [1 + (objects_in(value) if isinstance(value, CONTAINERS) else 0) for value in first]
    return round(len(container) * sum(inside) / len(inside)) if inside else 0


LONG_IN_LOADER = 0.2
BUSY_GPU_PCT = 90.0


class LoaderAdvice:
    """Warns once, if the loop waits for its training loader more than a fifth of its time."""

    def __init__(self, session: Context, monitor: Monitor) -> None:
        self._session = session
        self._monitor = monitor
        self._warned = False

    @hookimpl
    def batch_ready(self, loader: DataLoader[object]) -> None:
        whereabouts = self._monitor.whereabouts
        if self._warned or not whereabouts.is_sure or not torch.is_grad_enabled():
            return
        share = whereabouts.recent_share
        if share < LONG_IN_LOADER or self._monitor.latest.get("gpu_util_pct", 0.0) >= BUSY_GPU_PCT:
            return
        self._warned = True
        line = line_of(outwards(current_frame(0))) or SourceLine("torchbus-gpu", 1)
        text = (
            f"the loop waits for this loader {100 * share:.0f} % of its time:"
            f" {advice(loader, share, self._session)}"
        )
        warnings.warn_explicit(text, UserWarning, line.file, line.number)


def advice(loader: DataLoader[object], share: float, session: Context) -> str:
    cores = max(1, _cores() // session.world.local_world_size)
    wanted = workers_needed(loader.num_workers, share)
    more = f"num_workers={min(wanted, cores)} instead of {loader.num_workers}"
    changes = [more if min(wanted, cores) > loader.num_workers else ""]
    if wanted > cores:
        changes.append(
            f"{wanted} workers would be needed and this rank has {cores} cores, so make a sample"
            " cheaper (decode or resize it beforehand)"
        )
    if session.device.type != "cpu" and not loader.pin_memory:
        changes.append("pin_memory=True, so that batches are copied while the GPU works")
    return "; ".join(word for word in changes if word)


def workers_needed(workers: int, share: float) -> int:
    """Return how many workers the loop needs so that it does not wait.

    With ``workers``, it now waits for ``share`` of its time. Without workers, a batch takes
    ``share`` of a step. With workers, all of them are busy, so a batch takes ``workers`` steps. The
    workers have to make a batch in the rest of a step.
    """
    work = share if workers == 0 else workers
    return max(workers + 1, math.ceil(round(work / max(1.0 - share, 0.01), 3)))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


KEPT_STEPS, KEPT_PART = 3, 0.1


class RetainedGradients:
    """Warns of a line that calls ``zero_grad(set_to_none=False)`` in three steps."""

    def __init__(self, steps: StepCounter) -> None:
        self._sites = Sites(steps, _keeps_gradients, KEPT_STEPS, KEPT_PART)

    def replacements(self) -> list[Replacement]:
        return [(owner, "zero_grad", self._noticing) for owner in (Optimizer, Module)]

    def _noticing(self, original: Callable[..., object]) -> Callable[..., None]:
        def zero_grad(self_: object, set_to_none: bool = True) -> None:
            if not set_to_none:
                self._sites.hit("zero_grad(set_to_none=False)")
            original(self_, set_to_none)

        return zero_grad


def _keeps_gradients(what: str) -> str:
    return (
        f"{what} in the loop writes zeros into every gradient and keeps its memory: leave"
        " set_to_none out, unless the loop needs zeros for None"
    )
