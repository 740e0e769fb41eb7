"""Under stage 3, ``model.state_dict()`` is whole, and ``load_state_dict`` takes such a one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from torchbus_deepspeed._compat import zero
from torchbus_deepspeed.engine.engine import Engine
from torchbus_deepspeed.engine.held import Held


def hook(engines: Held, engine: Engine) -> None:
    """Each module gets the hooks, because the script may ask a part of the model by itself."""

    def gather(module: Module, state: dict[str, Any], prefix: str, metadata: object) -> None:
        if engine not in engines:
            return
        for name, parameter in zero.own_parameters(module).items():
            if prefix + name in state and parameter is not None:
                state[prefix + name] = zero.whole_parameter(parameter)

    def divide(module: Module, state: dict[str, Any], prefix: str, *_: object) -> None:
        if engine not in engines:
            return
        for name, parameter in zero.own_parameters(module).items():
            value = state.get(prefix + name)
            if isinstance(value, Tensor) and parameter is not None:
                put(engine, parameter, value)
                state[prefix + name] = parameter.detach()

    stack = engines.session.on_close
    for module in engine.model.modules():
        stack.callback(module.register_state_dict_post_hook(gather).remove)
        stack.callback(module.register_load_state_dict_pre_hook(divide).remove)


@torch.no_grad()
def put(engine: Engine, parameter: Tensor, value: Tensor) -> None:
    """Write this rank's part of a whole value, and what DeepSpeed keeps of it in float32."""
    if value.shape != zero.shape_of(parameter):
        return  # torch says what is wrong
    zero.put_parameter(parameter, value)
    if parameter in engine.layout:
        engine.layout.put(parameter, value, engine.masters)
