"""The end of an engine: the model is whole again, and nothing of DeepSpeed's is left on it."""

from __future__ import annotations

import torch

from torchbus_deepspeed._compat import zero
from torchbus_deepspeed.engine.engine import Engine
from torchbus_deepspeed.engine.layout import Gather


@torch.no_grad()
def end(engine: Engine, gather: Gather) -> None:
    """All ranks call it. Parameters keep their values, and get their whole gradients."""
    gradients = engine.whole_gradients(gather)
    parameters = list(engine.model.parameters())
    if engine.stage == 3:
        values = [zero.whole_parameter(one) for one in parameters]
    else:
        values = [one.detach().clone() for one in parameters]
    if engine.watch is not None:
        engine.watch.end()
    if engine.writes is not None:
        engine.writes.end()
    engine.ds.destroy()
    for parameter, value in zip(parameters, values, strict=True):
        zero.make_plain(parameter, value)
        if id(parameter) in gradients:
            parameter.grad = gradients[id(parameter)].to(parameter.dtype)
    for module in engine.model.modules():
        zero.unwrap_parameters(module)
    engine.traces.remove()
    if engine.waits is not None:
        engine.waits.remove()
