"""Parameters that no rank's loss has reached.

torch leaves them alone in a step. DeepSpeed steps flat parts, and so steps them with zeros.
"""

from __future__ import annotations

import weakref

from torch import Tensor
from torch.optim import SGD, Optimizer
from torchbus.plugin import Unsupported

from torchbus_deepspeed.engine.engine import Engine

WORDS = (
    "{} has no gradient in this step of {}, on any rank. torch leaves such a parameter alone, and"
    " DeepSpeed steps all of them: {}. Freeze it before you make the optimizer"
    " (requires_grad_(False)), or use strategy='ddp' or 'fsdp' in place of '{}'"
)
DECAYS = "its weight_decay={:g} would change it"
MOVES = "what the optimizer keeps of earlier gradients would move it"
COUNTS = "it has had such a step before, and the optimizer's count of steps would be wrong for it"


class Unreached:
    """Raises Unsupported where a step with zeros is not the same as no step."""

    def __init__(self, strategy: str) -> None:
        self._strategy = strategy
        self._stepped: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._reached: dict[int, bool] = {}
        """By the id of a parameter: whether the steps so far had a gradient for it."""

    def refuse(self, engine: Engine, optimizer: Optimizer) -> None:
        """Look at one step that is about to run."""
        plain = isinstance(optimizer, SGD) and not optimizer.defaults["dampening"]
        for name, parameter in engine.model.named_parameters():
            if parameter in engine.layout:
                group = _group(optimizer, parameter)
                why = self._why(engine, parameter, group, plain)
                if why:
                    words = name, type(optimizer).__name__, why, self._strategy
                    raise Unsupported(WORDS.format(*words))
                self._reached[id(parameter)] = id(parameter) in engine.reached

    def _why(self, engine: Engine, parameter: Tensor, group: dict[str, object], plain: bool) -> str:
        before = self._reached.get(id(parameter))
        if id(parameter) in engine.reached:
            return COUNTS if before is False and not plain else ""
        decay = group.get("weight_decay", 0.0)
        if isinstance(decay, float | int) and decay:
            return DECAYS.format(decay)
        keeps = not plain or bool(group.get("momentum"))
        return MOVES if before and keeps else ""


def _group(optimizer: Optimizer, parameter: Tensor) -> dict[str, object]:
    groups = optimizer.param_groups
    return next(group for group in groups if any(one is parameter for one in group["params"]))
