"""The outermost models, and how their ``forward`` runs."""

from __future__ import annotations

import warnings
import weakref
from abc import abstractmethod
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus.plugin import Context, Surround, hookimpl, inventory

from torchbus_amp.values import floats_to, halves_to_float32, map_tensors

DISCOVERY_BACKWARDS = 3
NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float64: "float64"}


class Models:
    """Finds models through their optimizers, by a variable's name, or at their first call."""

    def __init__(self, session: Context, dtype: torch.dtype) -> None:
        self._session = session
        self.dtype = dtype
        self._surround = Surround(self.around)
        self._quiet_backwards = 0
        session.on_close.callback(self._surround.close)

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is not None and self._session.captures(optimizer):
            for model in inventory.models_of(parameters):
                self._add(model)

    @hookimpl
    def model_found(self, model: Module, calling: bool) -> None:
        if self._session.captures(model) and any(True for _ in model.parameters()) and model not in self._surround:
            self.found(model, calling)

    @hookimpl
    def after_backward(self) -> None:
        """Without a strategy nobody else ends the search, which costs a microsecond per module call."""
        self._quiet_backwards += 1
        if self._quiet_backwards == DISCOVERY_BACKWARDS and self._session.world_size == 1:
            self._session.end_discovery()

    @hookimpl
    def describe(self, thing: Any) -> str | None:
        return self.words() if isinstance(thing, Module) and thing in self._surround else None

    def _add(self, model: Module) -> None:
        if model not in self._surround:
            self._quiet_backwards = 0
            self.prepare(model)
            self._surround.add(model)

    def found(self, model: Module, calling: bool) -> None:
        """A model that no optimizer has shown; ``calling``: its first forward has begun already."""
        self._add(model)

    def prepare(self, model: Module) -> None:
        """Before a model's first use."""

    @abstractmethod
    def around(self, model: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run ``forward``."""

    @abstractmethod
    def words(self) -> str:
        """What is done to a model."""


def floats_of(model: Module) -> list[Tensor]:
    return [parameter for parameter in model.parameters() if parameter.is_floating_point()]


class Autocast(Models):
    """Forward of the outermost models under autocast; their floating outputs return as float32."""

    def __init__(self, session: Context, dtype: torch.dtype) -> None:
        super().__init__(session, dtype)
        self._device = session.device.type
        self._depth = 0
        self.foreign = False

    def around(self, model: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if torch.is_autocast_enabled(self._device):
            self.foreign |= not self._depth
            return forward(*args, **kwargs)
        self._depth += 1
        try:
            with torch.autocast(self._device, self.dtype):
                output = forward(*args, **kwargs)
        finally:
            self._depth -= 1
        return map_tensors(output, halves_to_float32)

    def found(self, model: Module, calling: bool) -> None:
        """A forward that has begun can't be replaced any more: autocast is entered here, and left by a hook."""
        self._add(model)
        if not calling or torch.is_autocast_enabled(self._device):
            return
        context = torch.autocast(self._device, self.dtype)
        context.__enter__()
        self._depth += 1

        def leave(_: Module, __: Any, output: Any) -> Any:
            context.__exit__(None, None, None)
            self._depth -= 1
            handle.remove()
            return map_tensors(output, halves_to_float32)

        handle = model.register_forward_hook(leave, always_call=True)

    def words(self) -> str:
        if self.foreign:
            return "left alone: the loop has autocast of its own"
        return f"forward under {NAMES[self.dtype]} autocast, returns float32"


class Converted(Models):
    """Models and their inputs in one dtype; half precision returns float32, so that the loss is computed in it."""

    def __init__(self, session: Context, dtype: torch.dtype) -> None:
        super().__init__(session, dtype)
        self._missed: list[weakref.ref[Module]] = []

    @hookimpl(wrapper=True)
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> Generator[None, Any, Any]:  # type: ignore[override]
        """Before any strategy, which may divide the model: what it puts in the place of the parameters is no longer found by them."""
        super().parameters_added(optimizer, parameters)
        return (yield)

    def prepare(self, model: Module) -> None:
        model.to(self.dtype)

    def around(self, model: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        change = floats_to(self.dtype)
        output = forward(*map_tensors(tuple(args), change), **map_tensors(kwargs, change))
        return map_tensors(output, halves_to_float32)

    def found(self, model: Module, calling: bool) -> None:
        """A forward that has begun has its inputs already: such a model stays as it is, unless an optimizer shows it later."""
        if calling:
            self._missed.append(weakref.ref(model))
        else:
            self._add(model)

    @hookimpl
    def before_optimizer_step(self) -> None:
        missed, self._missed = self._missed, []
        for model in (reference() for reference in missed):
            if model is not None and model not in self._surround and any(tensor.dtype != self.dtype for tensor in floats_of(model)):
                warnings.warn(
                    f"precision in {NAMES[self.dtype]}: {type(model).__name__} is not converted, for it is in no optimizer, and its first "
                    "forward had begun when the session found it: call s.adopt(model) before its first use",
                    stacklevel=2,
                )

    @hookimpl
    def batch_ready(self, batch: Any) -> Any:
        """Targets too, in float64: many a loss takes no mixture."""
        return map_tensors(batch, floats_to(self.dtype)) if self.dtype == torch.float64 else None

    def words(self) -> str:
        return f"parameters, buffers and inputs in {NAMES[self.dtype]}" + ("" if self.dtype == torch.float64 else ", returns float32")
