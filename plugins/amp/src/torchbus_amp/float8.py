"""``precision="fp8"``: the matrix products of linear layers in float8, by torchao."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from fnmatch import fnmatchcase
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.optim import Optimizer
from torchbus.plugin import Context, Surround, hookimpl, mark_internal

from torchbus_amp._compat import share_parameters, undo_inductor_patch
from torchbus_amp.models import Args, Autocast, Kwargs, T

MULTIPLE = 16
SHOWN = 4


class Float8(Autocast):
    """bfloat16 autocast, in which linear layers multiply in float8.

    Layers and parameters stay the same objects. A layer's forward is computed by its twin, which
    torchao has made, with the layer's own parameters.
    """

    def __init__(self, session: Context, config: Any, skip: tuple[str, ...]) -> None:
        super().__init__(session, torch.bfloat16)
        self._config, self._skip = config, skip
        self._twins: WeakKeyDictionary[Module, Module] = WeakKeyDictionary()
        self._left: WeakKeyDictionary[Module, dict[str, str]] = WeakKeyDictionary()
        self._layers = Surround(self._in_float8)
        session.on_close.callback(self._layers.close)
        session.on_close.callback(undo_inductor_patch())

    @hookimpl(wrapper=True)
    def parameters_added(  # type: ignore[override]  # the base's is no wrapper
        self, optimizer: Optimizer | None, parameters: list[Tensor]
    ) -> Generator[None, object, object]:
        """Take the layers before any strategy, which may change their classes."""
        self.add_models_of(optimizer, parameters)
        return (yield)

    def prepare(self, model: Module) -> None:
        left = self._left.setdefault(model, {})
        for path, layer in model.named_modules():
            if type(layer) is nn.Linear and layer not in self._twins:
                why = self._why_not(layer, path)
                if why:
                    left[path] = why
                else:
                    self._twins[layer] = _twin(layer, self._config)
                    self._layers.add(layer)

    def _why_not(self, layer: nn.Linear, path: str) -> str:
        if any(fnmatchcase(path, pattern) for pattern in self._skip):
            return "fp8_skip"
        sizes = (layer.in_features, layer.out_features)
        if any(size % MULTIPLE for size in sizes):
            return f"{sizes[0]} x {sizes[1]}, not multiples of {MULTIPLE}"
        return ""

    def _in_float8(self, layer: Module, forward: Callable[..., T], args: Args, kwargs: Kwargs) -> T:
        (given,) = [*args, *kwargs.values()]
        assert isinstance(given, Tensor)
        kind = given.device.type
        if torch.is_autocast_enabled(kind):
            given = given.to(torch.get_autocast_dtype(kind))
        with torch.autocast(kind, enabled=False):
            output: T = self._twins[layer].forward(given)
        return output

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"float8": [self._line(model) for model in self._left] or ["no model yet"]}

    def _line(self, model: Module) -> str:
        converted = [path for path, part in model.named_modules() if part in self._twins]
        left = "; ".join(f"{path} ({why})" for path, why in self._left[model].items())
        return (
            f"{type(model).__name__}: {len(converted)} linear layers multiply in float8:"
            f" {_few(converted)}" + (f"; left in bfloat16: {left}" if left else "")
        )

    def summary(self) -> str:
        return (
            super().summary() if self.foreign else f"{super().summary()}; linear layers in float8"
        )


def _few(paths: list[str]) -> str:
    named = [path or "the model itself" for path in paths]
    more = len(named) - SHOWN
    return (", ".join(named[:SHOWN]) or "none") + (f" and {more} more" if more > 0 else "")


def _twin(layer: nn.Linear, config: Any) -> Module:
    """Torchao's layer, which no part of the session takes for the loop's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.float8 import convert_to_float8_training

        twin: Module = convert_to_float8_training(layer, config=config)
    share_parameters(twin, layer)
    mark_internal(twin)
    return twin
