"""The gradients of engines in a checkpoint of the middle of a step."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import Unsupported, hookimpl

from torchbus_deepspeed.engine.held import Held
from torchbus_deepspeed.engine.shadow import parameters_of
from torchbus_deepspeed.training.optimizer_states import gathering

LOCAL = (
    "a checkpoint between a backward under s.no_sync() and {}.step(), after a backward of all"
    " ranks in the same step: DeepSpeed has gradients of all ranks, and p.grad has this rank's own."
    " Save after the step"
)


class Gradients:
    """Answers torchbus-checkpoint. All ranks get its events alike."""

    def __init__(self, engines: Held) -> None:
        self._engines = engines

    @hookimpl(optionalhook=True)
    def whole_gradients(self, optimizer: Optimizer) -> list[Tensor | None] | None:
        held = self._engines.of(optimizer)
        if not any(each.has_gradients for each in held):
            return None
        own = parameters_of(optimizer)
        if any(one.grad is not None for one in own):
            raise Unsupported(LOCAL.format(type(optimizer).__name__))
        found: dict[int, Tensor] = {}
        for each in held:
            found |= each.whole_gradients(gathering(self._engines))
        return [found.get(id(one)) for one in own]

    @hookimpl(optionalhook=True)
    def put_gradients(self, optimizer: Optimizer, gradients: list[Tensor | None]) -> bool | None:
        """Without an engine they go to ``p.grad``, where the engine finds them as it is made."""
        held = self._engines.of(optimizer)
        pairs = zip(parameters_of(optimizer), gradients, strict=False)
        whole = {id(one): gradient for one, gradient in pairs if gradient is not None}
        for each in held:
            each.take_gradients(whole)
        return True if held else None
