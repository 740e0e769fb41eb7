"""``optimizer.step`` and ``zero_grad``: DeepSpeed steps instead of the loop's optimizer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.optim import SGD, Optimizer
from torch.utils.hooks import RemovableHandle
from torchbus.plugin import Unsupported, hookimpl

from torchbus_deepspeed import refusals
from torchbus_deepspeed.backward import refuse_some
from torchbus_deepspeed.engine import ReducingEngine
from torchbus_deepspeed.engines import Engines
from torchbus_deepspeed.shadow import parameters_of
from torchbus_strategy.loss.gradients import isolated_gradients


class Intake:
    """Reduces gradients in ``p.grad`` before a step, if no synchronised backward has reduced them.

    Such gradients come from ``s.no_sync()``, or from ``torch.autograd.grad``.
    """

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    @hookimpl(tryfirst=True)
    def gradients_ready(self, optimizer: Optimizer) -> None:
        weight = 1.0 if self._engines.has_local else self._engines.session.share.weight
        for each in self._engines.of(optimizer):
            if any(one.grad is not None for one in each.parameters):
                with isolated_gradients(each.gradients):
                    self._reduce(each, weight)

    @torch.no_grad()
    def _reduce(self, engine: ReducingEngine, weight: float) -> None:
        flags = torch.tensor(
            [float(one.grad is not None) for one in engine.parameters],
            device=self._engines.session.device,
        )
        dist.all_reduce(flags)
        ranks = dist.get_world_size()
        by = {
            id(one): number / ranks
            for one, number in zip(engine.parameters, flags.tolist(), strict=True)
            if number
        }
        refuse_some(engine, set(by), by)
        for one in engine.parameters:
            if one.grad is not None and weight != 1.0:
                one.grad = one.grad * weight if weight else torch.zeros_like(one.grad)
        engine.begin(set(by), set(), counts=True)
        engine.finish(set(by), engine.loss_scale)


class DeepSpeedSteps:
    """Runs DeepSpeed's step as the last hook before the loop's step.

    The loop's step then finds no gradients, so it does nothing.
    """

    def __init__(self, engines: Engines, clip: float) -> None:
        self._engines = engines
        self._clip = clip
        self._unreached = Unreached(engines.strategy)
        self._handle: RemovableHandle | None = None
        engines.session.replace(Module, "zero_grad", self._zero_grad)

    @hookimpl(trylast=True)
    def gradients_ready(self, optimizer: Optimizer, closure: object) -> None:
        if not self._engines.of(optimizer):
            return
        if self._clip:
            torch.nn.utils.clip_grad_norm_(parameters_of(optimizer), self._clip)
        if closure is None:  # after the loop's hooks, which may change gradients
            self._handle = optimizer.register_step_pre_hook(self._step)
        else:
            self._step(optimizer)

    def _step(self, optimizer: Optimizer, *_: object) -> None:
        job = self._engines.session.job
        assert job is not None
        job.wait_in(f"{type(optimizer).__name__}.step")
        for each in self._engines.of(optimizer):
            if each.has_gradients:
                if each.is_stale:
                    facts = type(optimizer).__name__, self._engines.strategy
                    raise Unsupported(refusals.STALE.format(*facts))
                self._unreached.refuse(each, optimizer)
                with each.computing():
                    each.step()
        job.go_on()

    @hookimpl(tryfirst=True)
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self._remove()

    @hookimpl(tryfirst=True)
    def step_failed(self, optimizer: Optimizer) -> None:
        self._remove()

    def _remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    # Clearing ------------------------------------------------------------------------------------

    @hookimpl
    def gradients_cleared(self, optimizer: Optimizer, kept: bool) -> None:
        """Clear gradients that a step has used, outside of an open window."""
        for each in self._engines.of(optimizer):
            if each.has_stepped or not kept:
                each.clear()

    def _zero_grad(self, original: Callable[..., None]) -> Callable[..., None]:
        def zero_grad(module: Module, *args: object, **kwargs: object) -> None:
            original(module, *args, **kwargs)
            self._clear(list(module.parameters()))

        return zero_grad

    @torch.no_grad()
    def _clear(self, parameters: list[Tensor]) -> None:
        """Called at ``module.zero_grad()``, for a model or a part of it."""
        for each in self._engines:
            inside = [one for one in parameters if one in each.layout]
            if len(inside) == len(each.parameters):
                each.clear()
            elif inside:
                each.clear_some(inside)


NO_GRADIENT = (
    "{} has no gradient in this step of {}, on any rank. torch leaves such a parameter alone, and"
    " DeepSpeed steps all of them: {}. Freeze it before you make the optimizer"
    " (requires_grad_(False)), or use strategy='ddp' or 'fsdp' in place of '{}'"
)
DECAYS = "its weight_decay={:g} would change it"
MOVES = "what the optimizer keeps of earlier gradients would move it"
COUNTS = "it has had such a step before, and the optimizer's count of steps would be wrong for it"


class Unreached:
    """Raises Unsupported if a step with zeros as the gradient would differ from no step."""

    def __init__(self, strategy: str) -> None:
        self._strategy = strategy
        self._reached: dict[int, bool] = {}
        """Whether the last step had a gradient for a parameter, by the parameter's id."""

    def refuse(self, engine: ReducingEngine, optimizer: Optimizer) -> None:
        """Check the step that is about to run."""
        plain = isinstance(optimizer, SGD) and not optimizer.defaults["dampening"]
        for name, parameter in engine.model.named_parameters():
            if parameter in engine.layout:
                group = _group(optimizer, parameter)
                why = self._why(engine, parameter, group, plain)
                if why:
                    facts = name, type(optimizer).__name__, why, self._strategy
                    raise Unsupported(NO_GRADIENT.format(*facts))
                self._reached[id(parameter)] = id(parameter) in engine.reached

    def _why(
        self, engine: ReducingEngine, parameter: Tensor, group: dict[str, object], plain: bool
    ) -> str:
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
