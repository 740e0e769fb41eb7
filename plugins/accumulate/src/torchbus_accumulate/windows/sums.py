"""What one optimizer has of the gradient of a window so far."""

from __future__ import annotations

import weakref

from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import Number, Unsupported, UsageError, scale_all

from torchbus_accumulate.windows.sharded_gradients import as_parameter

Held = list[tuple[Tensor, Tensor, int]]
COMMITTED, ASIDE, ZEROED, IN_PLACE = range(4)


class WindowSum:
    """The loop's own ``step`` commits the gradients that it finds; they wait here for those of the next batch.

    A backward after ``zero_grad`` adds to what was committed, in place. One before it, which is another optimizer's
    (the generator's loss reaches the discriminator), finds the committed gradients set aside and can't spoil them.
    ``weight`` is the part of the window that was committed, ``samples`` the number of samples in it, ``mass`` the same part by what they
    count, which for ``counted`` ones differs, ``whole`` by what any rank divides by, 0.0 where that is not told; ``settled``: the gradients of
    this window were divided already.
    """

    __slots__ = (
        "_held", "_state", "_touched", "_zeroes_twice", "calls", "counted", "mass", "optimizer", "samples", "settled", "skipped", "weight", "whole",
    )  # fmt: skip

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.weight = 0.0
        self.samples = 0.0
        self.mass: Number = 0.0
        self.whole: Number = 0.0
        self.counted = self.settled = False
        self.calls = 0
        self.skipped = False
        self._held: Held = []  # parameter, gradient, and the gradient's version when it was committed
        self._state = ZEROED
        self._touched = False
        self._zeroes_twice = False

    def parameters(self) -> list[Tensor]:
        """Those that the optimizer has now."""
        optimizer = self.optimizer()
        return [] if optimizer is None else [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def is_trained(self) -> bool:
        """Whether any of them requires a gradient."""
        return any(parameter.requires_grad for parameter in self.parameters())

    @property
    def takes_part(self) -> bool:
        """Whether the next backward adds to what was committed."""
        return self.calls > 0 and (self._state in (ZEROED, IN_PLACE) or self._cleared())

    def before_backward(self, total: float | None) -> None:
        """``total`` is the number of samples in the window that this backward ends: what was committed is put in
        proportion to it, if this backward adds to it."""
        if self._state == ZEROED and self.calls:
            self._put_back(total)
        elif self._state != COMMITTED:
            self._touched |= self._state != ASIDE
        elif self.calls:
            self._before_uncleared(total)

    def _before_uncleared(self, total: float | None) -> None:
        """The loop has not called ``zero_grad`` since its step."""
        self._check_untouched()
        if self._cleared():
            self._put_back(total)
        else:
            self._clear()
            self._state = ASIDE

    def before_zero_grad(self) -> bool:
        """The loop clears gradients: what was committed is kept. Returns whether nothing is left to clear."""
        if self._touched:
            self._zeroed_after_backward()
        cleared = self.calls > 0 and self._state == COMMITTED
        if self.calls:
            self._clear()
        self._state = ZEROED
        return cleared

    def _zeroed_after_backward(self) -> None:
        if self.calls and not self._zeroes_twice:
            raise Unsupported("zero_grad() after backward, where the loop had not called it before: accumulation can't tell them apart")
        self._zeroes_twice, self._touched = True, False

    def commit(self, optimizer: Optimizer, weight: float, samples: float, mass: Number, whole: Number, counted: bool) -> None:
        """Instead of a step."""
        if self.calls and self._state != IN_PLACE:
            self._merge()
        self._held = [(one, found, found._version) for group in optimizer.param_groups for one in group["params"] if (found := one.grad) is not None]
        self.weight += weight
        self.samples += samples
        self.mass = self.mass + mass
        self.whole = self.with_batch(whole)
        self.counted |= counted
        self.calls += 1
        self._state, self._touched = COMMITTED, False

    def with_batch(self, whole: Number) -> Number:
        """``whole``, with that of one more batch."""
        are_told = [isinstance(number, Tensor) or number != 0.0 for number in (self.whole, whole)]
        return self.whole + whole if are_told[1] and (are_told[0] or not self.calls) else 0.0

    def settle(self, scale: Number) -> None:
        """After the last backward of a window: the gradients are those of the window, times one over ``scale``."""
        self.settled = True
        if isinstance(scale, Tensor) or abs(scale - 1.0) > 1e-9:
            self._scale(scale)

    def finish(self, total: float | None) -> None:
        """Before a real step: the gradients are the whole window's, and weigh ``total``. None: as they are."""
        if self.calls:
            if self._state != IN_PLACE:
                self._merge()
            if total and not self.settled and abs(total - 1.0) > 1e-9:
                self._scale(1.0 / total)
            self.drop()
        self.settled = False
        self._state, self._touched = COMMITTED, False

    def _scale(self, factor: Number) -> None:
        scale_all([parameter.grad for parameter in self.parameters() if parameter.grad is not None], factor)

    def drop(self) -> None:
        """Nothing is committed any more."""
        self._held = []
        self.weight = self.samples = self.mass = self.whole = 0.0
        self.counted = False
        self.calls = 0
        self._state, self._touched = COMMITTED, False

    @property
    def is_being_added_to(self) -> bool:
        """Whether a backward has added to what was committed, and no step has committed that."""
        return self._state == IN_PLACE

    def committed(self) -> list[Tensor | None]:
        """What was committed, for each parameter."""
        found = {id(parameter): gradient for parameter, gradient, _ in self._held}
        return [found.get(id(parameter)) for parameter in self.parameters()]

    def restore(self, calls: int, weight: float, samples: float, mass: float, whole: float, gradients: list[Tensor | None]) -> None:
        """As if so much had been committed, and cleared by the loop. Raises UsageError for another number of parameters."""
        parameters = self.parameters()
        if len(parameters) != len(gradients):
            raise UsageError(f"this checkpoint has gradients of {len(gradients)} parameters, and the optimizer has {len(parameters)}")
        self.calls, self.weight, self.samples, self.mass, self.whole = calls, weight, samples, mass, whole
        self.counted = abs(mass - weight) > 1e-9 * weight
        both = zip(parameters, gradients, strict=True)
        placed = [(parameter, as_parameter(gradient.to(parameter.device), parameter)) for parameter, gradient in both if gradient is not None]
        self._held = [(parameter, gradient, gradient._version) for parameter, gradient in placed]
        self._clear()
        self._state, self._touched = ZEROED, False

    def _put_back(self, total: float | None) -> None:
        if total is not None:
            self._rescale(total)
        twice = self._zeroes_twice
        for parameter, gradient, _ in self._held:
            parameter.grad = gradient.clone() if twice else gradient
        self._state, self._touched = IN_PLACE, True

    def _rescale(self, total: float) -> None:
        scale = self.samples / total / self.weight if self.weight else 1.0
        if abs(scale - 1.0) > 1e-12:
            scale_all([gradient for _, gradient, _ in self._held], scale)
            self.weight *= scale
            self.mass, self.whole = self.mass * scale, self.whole * scale

    def _merge(self) -> None:
        """What was set aside, and not put back, joins what the loop has made since."""
        for parameter, gradient, _ in self._held:
            own = parameter.grad
            parameter.grad = gradient if own is None or own is gradient else gradient + own

    def _cleared(self) -> bool:
        """Whether the loop has set gradients to None by hand, or by ``model.zero_grad()``."""
        return self._state == COMMITTED and all(parameter.grad is None for parameter, _, _ in self._held)

    def _check_untouched(self) -> None:
        if any(gradient._version != version for _, gradient, version in self._held):
            raise Unsupported(
                "gradients were changed in place between optimizer.step() and the next backward, in the middle of a window: "
                "clear them by optimizer.zero_grad() or model.zero_grad(), or accumulate in the loop under s.accumulating(...)"
            )

    def _clear(self) -> None:
        for parameter, _, _ in self._held:
            parameter.grad = None
