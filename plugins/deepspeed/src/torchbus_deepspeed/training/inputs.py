"""A model in 16 bits gets its inputs in 16 bits, and its losses are scaled for float16."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import BackwardCall, hookimpl
from torchbus.tree import map_tensors

from torchbus_deepspeed.training.engines import Engines


class Inputs:
    """Converts floating-point inputs of models that optimizers train. Outputs stay as they are."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._known: set[int] = set()

    @hookimpl(trylast=True)
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        for model in objects.models_of(parameters) if optimizer is not None else ():
            if id(model) not in self._known:
                self._known.add(id(model))
                handle = model.register_forward_pre_hook(self._convert, with_kwargs=True)
                self._engines.session.on_close.callback(handle.remove)

    def _convert(
        self, model: Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[object, dict[str, object]]:
        dtype = self._engines.config.dtype

        def convert(tensor: Tensor) -> Tensor:
            return tensor.to(dtype) if torch.is_floating_point(tensor) else tensor

        return map_tensors(args, convert), map_tensors(kwargs, convert)

    @hookimpl
    def before_backward(self, call: BackwardCall) -> None:
        scale = self._engines.loss_scale()
        if scale != 1.0:
            call.factor = call.factor * scale
