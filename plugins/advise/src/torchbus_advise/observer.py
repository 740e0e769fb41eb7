"""The plugin that watches the first steps of a loop, and ends the script when it has seen
enough."""

from __future__ import annotations

import statistics
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode
from torchbus import objects
from torchbus.plugin import BackwardCall, Context, Surround, hookimpl
from torchbus.tree import leaves

from torchbus_advise import inventory as kept
from torchbus_advise.facts import Loading, ObservedFacts, PassFacts
from torchbus_advise.inventory import SavedTensors

PATIENCE = 10
"""The multiple of the steps that one optimizer makes at most if the others step rarely."""


class ObservedEnough(BaseException):
    """Ends the script. ``except Exception`` does not catch it."""


class Observer:
    """Counts during ``steps`` steps of each optimizer, and then times steps for ``then_s`` seconds
    without counting. With ``halves``, the loop gets half of each batch from the second step on,
    which shows what grows with the batch."""

    def __init__(self, steps: int, *, halves: bool = False, then_s: float = 0.0) -> None:
        self._wanted, self._halves = steps, halves
        self._pace = StepTimer(then_s) if then_s else None
        self._meter, self._loading = ModelMeter(), Loading()
        self._counting = ExitStack()
        self._optimizers: list[Optimizer] = []
        self._steps: Counter[int] = Counter()
        self._gradient_bytes: dict[int, int] = {}
        self._passes: list[PassFacts] = []
        self._local_precision = False
        self._hindrances: set[str] = set()
        self._facts: ObservedFacts | None = None
        self.backwards = 0

    @property
    def steps(self) -> int:
        """The number of steps of the optimizer that has stepped most."""
        return max(self._steps.values(), default=0)

    @hookimpl
    def session_start(self, session: Context) -> None:
        session.bus.register(self._loading, "advise.loading")
        session.on_close.enter_context(self._counting)
        self._counting.enter_context(self._meter.running())

    @hookimpl
    def model_found(self, model: Module) -> None:
        device = next((one.device.type for one in model.parameters()), "cpu")
        self._local_precision |= torch.is_autocast_enabled(device)
        self._meter.know(model)

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is not None and not any(optimizer is known for known in self._optimizers):
            self._optimizers.append(optimizer)
        self._meter.know_parameters(parameters)
        for model in objects.models_of(parameters):
            self._meter.know(model)

    @hookimpl
    def before_backward(self, call: BackwardCall) -> None:
        self.backwards += 1
        if call.create_graph:
            self._hindrances.add("backward(create_graph=True)")
        if self._facts is None:
            self._meter.before_backward()

    @hookimpl
    def after_backward(self) -> None:
        if self._facts is None:
            self._passes.append(self._meter.after_backward(self._loading.samples))
            self._note_gradients()

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self._steps[id(optimizer)] += 1
        if self._facts is None and self._has_seen_enough():
            self._facts = self._collected()
            self._counting.close()
        elif self._facts is None:
            self._loading.halve = self._halves
        if self._facts is not None and self._is_over(optimizer):
            raise ObservedEnough

    @hookimpl
    def save_file(self) -> bool:
        """Keep ``torch.save`` from writing anything: this is a trial."""
        return True

    def facts(self) -> ObservedFacts | None:
        """Return the facts, or None if the loop has not made a step."""
        return self._facts or (self._collected() if self._steps else None)

    @property
    def step_s(self) -> float | None:
        return None if self._pace is None else self._pace.step_s

    def _has_seen_enough(self) -> bool:
        counts = [self._steps[id(optimizer)] for optimizer in self._optimizers]
        return min(counts, default=1) >= self._wanted or max(counts) >= PATIENCE * self._wanted

    def _is_over(self, optimizer: Optimizer) -> bool:
        if self._pace is None:
            return True
        if optimizer is self._optimizers[0]:
            self._pace.step()
        return self._pace.is_over

    def _note_gradients(self) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for one in group["params"]:
                    if one.grad is not None:
                        seen = self._gradient_bytes.get(id(one), 0)
                        self._gradient_bytes[id(one)] = max(seen, one.grad.nbytes)

    def _collected(self) -> ObservedFacts:
        return ObservedFacts(
            parameters=kept.parameters(self._optimizers, self._gradient_bytes),
            passes=self._passes,
            optimizers=kept.described(self._optimizers),
            loader=self._loading.facts(),
            buffer_bytes=kept.buffer_bytes(),
            blocks=self._meter.block_count,
            local_precision=self._local_precision or kept.has_low_precision(self._optimizers),
            steps=self.steps,
            hindrances=sorted({*self._hindrances, *kept.hindrances(self._optimizers)}),
        )


T = TypeVar("T")


class ModelMeter:
    """Observes models before they are called, and every backward."""

    def __init__(self) -> None:
        self._saved = SavedTensors()
        self._flops = FlopCounterMode(display=False)
        self._surround = Surround(self._in_block)
        self._models: list[weakref.ref[Module]] = []
        self._parameters: list[Tensor] = []
        self._blocks: dict[int, int] = {}
        self._counted = 0
        self._in_blocks = 0
        self._held_bytes = (0, 0)
        self.block_count = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.callback(self._surround.close)
            stack.enter_context(self._saved.recording())
            stack.enter_context(self._flops)
            yield

    def know(self, model: Module) -> None:
        self._models.append(weakref.ref(model))
        for block in objects.repeated_blocks(model):
            if id(block) not in self._blocks:
                self._blocks[id(block)] = self.block_count
                self.block_count += 1
                self._surround.add(block)

    def know_parameters(self, parameters: list[Tensor]) -> None:
        """Add the parameters that an optimizer holds, some of which are in no model."""
        self._parameters += parameters

    def before_backward(self) -> None:
        """Count what is saved, now that models have been converted to their training dtype."""
        models = [found for found in (one() for one in self._models) if found is not None]
        inside = [one for model in models for one in (*model.parameters(), *model.buffers())]
        self._saved.leave_out([*inside, *self._parameters])
        self._held_bytes = self._saved.total_bytes(), self._saved.checkpointed_bytes()

    def after_backward(self, samples: int | None) -> PassFacts:
        """Return the facts of the pass that this backward ends."""
        total = self._flops.get_total_flops()
        found = PassFacts(samples, *self._held_bytes, total - self._counted, self._in_blocks)
        self._counted, self._in_blocks = total, 0
        self._saved.forget_inputs()
        return found

    def _in_block(
        self,
        block: Module,
        forward: Callable[..., T],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> T:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        inputs = [one for one in leaves([args, kwargs]) if isinstance(one, Tensor)]
        before = self._flops.get_total_flops()
        with self._saved.inside(self._blocks[id(block)], inputs):
            result = forward(*args, **kwargs)
        self._in_blocks += self._flops.get_total_flops() - before
        return result


STEPS_AT_MOST = 40


class StepTimer:
    """Times steps until ``seconds`` have passed, or enough steps were timed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at_s: list[float] = []

    def step(self) -> None:
        self._at_s.append(time.perf_counter())

    @property
    def is_over(self) -> bool:
        lost = self._at_s[-1] - self._at_s[0] if self._at_s else 0.0
        return lost >= self._seconds or len(self._at_s) > STEPS_AT_MOST

    @property
    def step_s(self) -> float | None:
        gaps = [late - early for early, late in zip(self._at_s, self._at_s[1:], strict=False)]
        return statistics.median(gaps) if gaps else None
