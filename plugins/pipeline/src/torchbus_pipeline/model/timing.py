"""How long each layer computes, measured on a copy of the model."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import Module
from torchbus.plugin import mark_internal
from torchbus.tree import leaves, map_tensors

from torchbus_device import accelerators
from torchbus_pipeline.model.layers import Layers

REPEATS = 3
"""Each layer computes so often, and the shortest time counts: the first is often longer."""


def seconds_of(
    model: Module, found: Layers, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[float]:
    """The seconds of each layer's forward and backward, in one call of the model.

    Nothing of it reaches the model itself. Random numbers are drawn: put them back.
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
    """Hears the forward of a layer, and lets it compute again by itself."""

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
    """The time at which the device has done what it was asked."""
    for one in leaves(args):
        if isinstance(one, Tensor) and one.device.type != "cpu":
            accelerators.recorded(one.device).synchronize()
    return time.perf_counter()
