"""Measures the time of each layer on a copy of the model."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.utils.hooks import RemovableHandle
from torchbus.plugin import Context, Unsupported, mark_internal
from torchbus.tree import leaves, map_tensors

from torchbus_device import accelerators
from torchbus_pipeline.cut import LayerRange
from torchbus_pipeline.divergence import CheckedBarrier

MARK = "torchbus_pipeline_undivided"
COPIED = (
    "a model is copied or pickled before its first call, under strategy='pipeline' with"
    " balance='time': it is divided at that call, and the copy would not be. Copy it after the"
    " first call, or use balance='parameters'"
)
Timing = tuple[list[float] | None, str]
Divide = Callable[[list[float] | None, str], None]
"""Gets the seconds of each layer and "", or None and the reason."""


class FirstCalls:
    """Waits for the first call of each model. Rank 0 measures, and all ranks get its times."""

    def __init__(self, session: Context, barrier: CheckedBarrier) -> None:
        self._session, self._barrier = session, barrier

    def wait_for(self, model: Module, found: LayerRange, divide: Divide) -> None:
        """Call ``divide`` at the model's first call, on all ranks."""
        name = type(model).__name__

        def called(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            forget()
            self._barrier.sync(f"the first call of {name}")
            divide(*self._measured(module, found, args, kwargs))

        handle = model.register_forward_pre_hook(called, prepend=True, with_kwargs=True)
        forget = _marked(model, handle)
        self._session.on_close.callback(forget)

    def _measured(
        self, model: Module, found: LayerRange, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Timing:
        reported: Timing = (None, "")
        if self._session.is_main:
            drawn = self._session.random.state()
            try:
                reported = seconds_of(model, found, args, kwargs), ""
            except Exception as error:  # a copy of the model, or its layers, may raise anything
                reported = None, f"{type(error).__name__}: {error}"
            finally:
                self._session.random.load(drawn)
        agreed: Timing = self._barrier.broadcast(reported)
        return agreed


def is_waiting(model: Module) -> bool:
    """Whether a model waits to be divided at its first call."""
    return MARK in vars(model)


class _Undivided:
    """A mark in a model that waits for its first call. It raises if the model is copied."""

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise Unsupported(COPIED)

    def __reduce__(self) -> NoReturn:
        raise Unsupported(COPIED)


def _marked(model: Module, handle: RemovableHandle) -> Callable[[], None]:
    """Mark a model. Returns a function that removes the mark and the hook."""
    vars(model)[MARK] = _Undivided()

    def forget() -> None:
        handle.remove()
        vars(model).pop(MARK, None)

    return forget


REPEATS = 3
"""How often each layer is timed. The shortest time counts, as the first is often longer."""


def seconds_of(
    model: Module, found: LayerRange, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[float]:
    """Return the seconds of each layer's forward and backward in one call of the model.

    This runs a copy, so the model itself does not change. It draws random numbers, so the caller
    must restore the random state.
    """
    copied = copy.deepcopy(model)
    mark_internal(copied)
    seconds: dict[int, float] = defaultdict(float)
    layers = list(cast("nn.Sequential", copied.get_submodule(found.path)))
    for layer in dict.fromkeys(layers):
        layer.register_forward_hook(_Clock(seconds), with_kwargs=True)
    with torch.no_grad():
        copied(*args, **kwargs)
    return [seconds[id(layer)] for layer in layers]


class _Clock:
    """A hook that repeats the forward of a layer, with a backward, and measures the time."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self._seconds, self._runs = seconds, False

    def __call__(
        self, layer: Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object
    ) -> None:
        if not self._runs:
            self._runs = True
            times = [_once(layer, args, kwargs) for _ in range(REPEATS)]
            self._seconds[id(layer)] += min(times)
            self._runs = False


def _once(layer: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    with torch.enable_grad():
        given = map_tensors(args, _detached)
        begun = _now(args)
        made = [one for one in leaves(layer(*given, **kwargs)) if _has_graph(one)]
        reached = [one for one in [*leaves(given), *layer.parameters()] if _trains(one)]
        if made and reached:
            ones = [torch.ones_like(one) for one in made]
            torch.autograd.grad(made, reached, ones, allow_unused=True)
        return _now(args) - begun


def _detached(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(torch.is_floating_point(tensor))


def _has_graph(one: object) -> bool:
    return isinstance(one, Tensor) and one.grad_fn is not None


def _trains(one: object) -> bool:
    return isinstance(one, Tensor) and one.requires_grad


def _now(args: tuple[Any, ...]) -> float:
    """Return the time after synchronising the device."""
    for one in leaves(args):
        if isinstance(one, Tensor) and one.device.type != "cpu":
            accelerators.recorded(one.device).synchronize()
    return time.perf_counter()
