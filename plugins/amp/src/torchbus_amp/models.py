"""The outermost models, and the precision in which their ``forward`` runs."""

from __future__ import annotations

import warnings
import weakref
from abc import abstractmethod
from collections.abc import Callable, Generator
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Context, Surround, hookimpl
from torchbus.tree import map_tensors

DISCOVERY_BACKWARDS = 3
NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float64: "float64"}
T = TypeVar("T")
Args = tuple[object, ...]
Kwargs = dict[str, object]


class CastModels:
    """Finds models through their optimizers, by a variable's name, or at their first call."""

    def __init__(self, session: Context, dtype: torch.dtype) -> None:
        self._session = session
        self.dtype = dtype
        self._surround = Surround(self.around)
        self._quiet_backwards = 0
        session.on_close.callback(self._surround.close)

    def add_models_of(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        """Take the models that own an optimizer's parameters."""
        if optimizer is not None and self._session.captures(optimizer):
            for model in objects.models_of(parameters):
                self._add(model)

    @hookimpl
    def model_found(self, model: Module, calling: bool) -> None:
        if (
            self._session.captures(model)
            and any(True for _ in model.parameters())
            and model not in self._surround
        ):
            self.found(model, calling)

    @hookimpl
    def after_backward(self) -> None:
        """End the search for models, which costs a microsecond per module call.

        With several ranks the strategy does so.
        """
        self._quiet_backwards += 1
        if self._quiet_backwards == DISCOVERY_BACKWARDS and self._session.world_size == 1:
            self._session.end_discovery()

    @hookimpl
    def describe(self, thing: object) -> str | None:
        return self.summary() if isinstance(thing, Module) and thing in self._surround else None

    def _add(self, model: Module) -> None:
        if model not in self._surround:
            self._quiet_backwards = 0
            self.prepare(model)
            self._surround.add(model)

    def found(self, model: Module, calling: bool) -> None:
        """Take a model that no optimizer has shown. If ``calling``, its first forward has begun."""
        self._add(model)

    def prepare(self, model: Module) -> None:
        """Change a model before its first use."""

    @abstractmethod
    def around(self, model: Module, forward: Callable[..., T], args: Args, kwargs: Kwargs) -> T:
        """Run ``forward``."""

    @abstractmethod
    def summary(self) -> str:
        """What happens to a model, for ``explain``."""


def floats_of(model: Module) -> list[Tensor]:
    return [parameter for parameter in model.parameters() if parameter.is_floating_point()]


class Autocast(CastModels):
    """Runs the outermost models under autocast, and returns floating outputs as float32."""

    def __init__(self, session: Context, dtype: torch.dtype) -> None:
        super().__init__(session, dtype)
        self._device = session.device.type
        self._depth = 0
        self.foreign = False

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        self.add_models_of(optimizer, parameters)

    def around(self, model: Module, forward: Callable[..., T], args: Args, kwargs: Kwargs) -> T:
        if torch.is_autocast_enabled(self._device):
            self.foreign |= not self._depth
            return forward(*args, **kwargs)
        self._depth += 1
        try:
            with torch.autocast(self._device, self.dtype):
                output = forward(*args, **kwargs)
        finally:
            self._depth -= 1
        returned: T = map_tensors(output, halves_to_float32)
        return returned

    def found(self, model: Module, calling: bool) -> None:
        """Enter autocast here, and leave it in a hook, if the forward has begun.

        Such a forward can no longer be replaced.
        """
        self._add(model)
        if not calling or torch.is_autocast_enabled(self._device):
            return
        context = torch.autocast(self._device, self.dtype)
        context.__enter__()
        self._depth += 1

        def leave(_: Module, __: object, output: T) -> T:
            context.__exit__(None, None, None)
            self._depth -= 1
            handle.remove()
            returned: T = map_tensors(output, halves_to_float32)
            return returned

        handle = model.register_forward_hook(leave, always_call=True)

    def summary(self) -> str:
        if self.foreign:
            return "unchanged: the loop uses autocast itself"
        return f"forward under {NAMES[self.dtype]} autocast, returns float32"


class Converted(CastModels):
    """Converts models and their inputs to one dtype.

    Half precision returns float32, so that the loss is computed in float32.
    """

    def __init__(self, session: Context, dtype: torch.dtype) -> None:
        super().__init__(session, dtype)
        self._missed: list[weakref.ref[Module]] = []

    @hookimpl(wrapper=True)
    def parameters_added(
        self, optimizer: Optimizer | None, parameters: list[Tensor]
    ) -> Generator[None, object, object]:
        """Convert before any strategy, which may divide the model and replace its parameters."""
        self.add_models_of(optimizer, parameters)
        return (yield)

    def prepare(self, model: Module) -> None:
        model.to(self.dtype)

    def around(self, model: Module, forward: Callable[..., T], args: Args, kwargs: Kwargs) -> T:
        change = floats_to(self.dtype)
        output = forward(*map_tensors(tuple(args), change), **map_tensors(kwargs, change))
        returned: T = map_tensors(output, halves_to_float32)
        return returned

    def found(self, model: Module, calling: bool) -> None:
        """Convert a model, unless its forward has begun: that has its inputs already.

        An optimizer may still show such a model later.
        """
        if calling:
            self._missed.append(weakref.ref(model))
        else:
            self._add(model)

    @hookimpl
    def before_optimizer_step(self) -> None:
        missed, self._missed = self._missed, []
        for model in (reference() for reference in missed):
            if (
                model is not None
                and model not in self._surround
                and any(tensor.dtype != self.dtype for tensor in floats_of(model))
            ):
                warnings.warn(
                    f"precision in {NAMES[self.dtype]}: {type(model).__name__} is not converted."
                    " No optimizer holds it, and its first forward had begun when the session"
                    " found it: call s.adopt(model) before its first use",
                    stacklevel=2,
                )

    @hookimpl
    def batch_ready(self, batch: T) -> T | None:
        """Convert targets to float64 too: many losses take no mixture."""
        if self.dtype != torch.float64:
            return None
        converted: T = map_tensors(batch, floats_to(self.dtype))
        return converted

    def summary(self) -> str:
        return f"parameters, buffers and inputs in {NAMES[self.dtype]}" + (
            "" if self.dtype == torch.float64 else ", returns float32"
        )


HALF = (torch.float16, torch.bfloat16)
Change = Callable[[Tensor], Tensor]


def floats_to(dtype: torch.dtype) -> Change:
    """Convert real floating tensors to this dtype, and leave others as they are."""
    return lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor


def halves_to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor
