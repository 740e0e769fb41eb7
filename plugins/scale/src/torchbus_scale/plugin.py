"""Scales and warms up learning rates, and offers ``s.find_batch_size`` and ``s.find_lr``."""

from __future__ import annotations

import inspect
import math
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal, cast

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR
from torch.utils.data import DataLoader
from torchbus import objects
from torchbus.plugin import Context, UsageError, expect, hookimpl

from torchbus_scale import range_test, rates
from torchbus_scale.rates import LearningRates

RULES: dict[str, Callable[[float], float]] = {"linear": float, "sqrt": math.sqrt}
BOUNDS: dict[type[LRScheduler], tuple[str, ...]] = {
    OneCycleLR: ("max_lr",),
    CyclicLR: ("base_lr", "max_lr"),
}
"""Schedulers that set the rates themselves, and their arguments that are rates."""
LARGE_BATCH = 8192  # beyond it, the linear rule fails in Goyal et al.


class Scale:
    """Scales the learning rates of an unchanged script to its effective batch size.

    Each step sees (ranks x accumulation) times the samples of the script's batch.

    Args:
        scale_lr: multiply the script's learning rates by the growth of the effective batch
            ("linear"), or by its square root ("sqrt").
        warmup_steps: the number of real steps over which learning rates grow linearly: with
            ``scale_lr`` from the script's rate to the scaled one, otherwise from almost 0 to the
            script's rate.

    ``s.effective_batch_size`` is the number of samples in one real step.
    ``s.find_batch_size(function, start)`` finds a batch size that fits in memory.
    ``s.find_lr(function, optimizer, loader)`` tries learning rates.

    Source: Goyal et al., Accurate, Large Minibatch SGD, 2017.

    Raises:
        UsageError: an option has another type or value.
    """

    owns = ("learning rate scale",)
    verbs = ("effective_batch_size", "find_batch_size", "find_lr")
    hears_trials = False
    tried_with = ({"warmup_steps": 3},)

    def __init__(
        self, scale_lr: Literal["linear", "sqrt"] | None = None, warmup_steps: int = 0
    ) -> None:
        if scale_lr is not None and scale_lr not in RULES:
            raise UsageError(f"scale_lr={scale_lr!r} is unknown: use 'linear' or 'sqrt'")
        expect("warmup_steps", warmup_steps, int, "a number of steps")
        if warmup_steps < 0:
            raise UsageError(f"warmup_steps={warmup_steps}: it must be 0 or more")
        self._rule = scale_lr
        self._warmup_steps = warmup_steps
        self._warms_alone = scale_lr is None and warmup_steps > 0
        self._session: Context | None = None
        self._batch_size: int | None = None
        self._batches = self._parts = 1
        self._factor = 1.0
        self._scaled: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._loaded_steps: list[int] = []
        self._searching = False
        self._rates: list[float | torch.Tensor] = []

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session
        accumulated = max(getattr(plugin, "grad_batches", 1) for _, plugin in session.bus.plugins())
        self._parts = parts_of_step(session)
        self._batches = accumulated * self._parts
        self._factor = RULES[self._rule](self._batches) if self._rule else 1.0
        if self._factor != 1.0:
            for cls, names in BOUNDS.items():
                session.replace(cls, "__init__", partial(self._scaling, names))

    # Learning rates ------------------------------------------------------------------------------

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        """Scale the rates of an optimizer, and the base rates of its existing schedulers."""
        if (
            optimizer is None
            or self._session is None
            or (self._factor == 1.0 and not self._warms_alone)
            or not self._session.captures(optimizer)
        ):
            return
        done = self._scaled.get(optimizer, 0)
        if not done:
            self._steps[optimizer] = self._loaded_steps.pop(0) if self._loaded_steps else 0
        refuse_without_rate(optimizer, "warmup_steps" if self._warms_alone else "scale_lr")
        scale_rates(optimizer, done, self._factor)
        self._scaled[optimizer] = len(optimizer.param_groups)

    def _scaling(self, names: Sequence[str], original: Callable[..., None]) -> Callable[..., None]:
        """Scale the rates that a scheduler of a scaled optimizer is given."""
        signature = inspect.signature(original)

        def __init__(*args: Any, **kwargs: Any) -> None:
            given = signature.bind(*args, **kwargs)
            factor = self._factor if given.arguments["optimizer"] in self._scaled else 1.0
            given.arguments.update({one: _times(given.arguments[one], factor) for one in names})
            original(*given.args, **given.kwargs)

        return __init__

    @hookimpl(tryfirst=True)
    def before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Set the rate for only this step. The loop and its schedulers see it without warm-up.

        Raises UsageError while ``find_batch_size`` runs on several ranks.
        """
        if self._searching:
            raise UsageError(
                "find_batch_size: the function calls optimizer.step(), in which all ranks would"
                " wait while one may be out of memory: let it make only a forward and a backward"
            )
        step = self._steps.get(optimizer, self._warmup_steps)
        if step < self._warmup_steps:
            part = self._part_of_rate(step)
            self._rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * part

    def _part_of_rate(self, step: int) -> float:
        """Return the factor of the rate in a step of the warm-up, counted from 0.

        Without ``scale_lr`` it grows from 1 / ``warmup_steps``, otherwise from 1 / scale.
        """
        if self._warms_alone:
            return (step + 1) / self._warmup_steps
        return (1.0 + (self._factor - 1.0) * step / self._warmup_steps) / self._factor

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self.step_failed(optimizer)
        if optimizer in self._steps:
            self._steps[optimizer] += 1

    @hookimpl
    def step_failed(self, optimizer: Optimizer) -> None:
        """Restore the rates. A step that has failed does not count."""
        if self._rates:
            for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate
            self._rates = []

    def state_dict(self) -> dict[str, list[int]]:
        """Return the number of warm-up steps of each optimizer, in the order of the optimizers."""
        return {"steps": [min(step, self._warmup_steps) for step in self._steps.values()]}

    def load_state_dict(self, state: Mapping[str, list[int]]) -> None:
        """Load the steps of existing optimizers, in order, and of those that are made later.

        All ranks call it with the same state, inside the block.
        """
        known = list(self._steps)
        self._steps.update(zip(known, state["steps"], strict=False))
        self._loaded_steps = list(state["steps"][len(known) :])

    # Batches -------------------------------------------------------------------------------------

    @hookimpl
    def loader_start(self, loader: DataLoader[object]) -> None:
        if (
            self._session is None
            or not torch.is_grad_enabled()
            or not self._session.captures(loader)
        ):
            return
        first, self._batch_size = (
            self._batch_size is None,
            batch_size_of(loader) or self._batch_size,
        )
        size = self._batches * (self._batch_size or 0)
        if first and size > LARGE_BATCH and self._session.is_main:
            warnings.warn(
                f"a step sees {size} samples ({self._arithmetic()}): beyond {LARGE_BATCH} scaled"
                " learning rates are known to lose accuracy; use a smaller batch, or an optimizer"
                " made for large ones (LARS, LAMB)",
                stacklevel=2,
            )

    @property
    def effective_batch_size(self) -> int:
        """The number of samples in one real step: batch x ranks x accumulation.

        Any rank may read it. Raises UsageError if no DataLoader with a ``batch_size`` exists.
        """
        if self._batch_size is None:
            sizes = [batch_size_of(loader) for loader in objects.alive(DataLoader)]
            self._batch_size = next((size for size in sizes if size), None)
        if self._batch_size is None:
            raise UsageError(
                "s.effective_batch_size: no DataLoader with a batch_size has been seen. Read it"
                " after you make one"
            )
        return self._batches * self._batch_size

    def find_batch_size(self, function: Callable[[int], object], start: int = 128) -> int:
        """Return the first batch size, in samples per rank, that fits in memory on every rank.

        It tries ``start``, and then smaller sizes. ``function`` gets a size, and makes a forward
        and a backward, which does not communicate. Clear the gradients afterwards. All ranks call
        it. With several ranks it needs torchbus-accumulate. Raises UsageError if accelerate is not
        installed, if ``start`` is not a number of samples, or, with several ranks, if ``function``
        steps an optimizer.

        Source: ``accelerate.utils.find_executable_batch_size``, whose sizes it tries.
        """
        assert self._session is not None
        several = self._session.world_size > 1
        self._searching = several
        unsynchronised = cast(Any, self._session.user).no_sync if several else nullcontext
        try:
            with range_test.restored_plugins(self._session):
                return search(function, start, self._session, unsynchronised)
        finally:
            self._searching = False

    def find_lr(
        self,
        function: Callable[[object], object],
        optimizer: Optimizer,
        loader: DataLoader[object],
        *,
        min_lr: float = 1e-7,
        max_lr: float = 10.0,
        steps: int = 100,
    ) -> LearningRates:
        """Run the learning-rate range test: a real step at each rate, in increasing order.

        ``function`` does what the loop does with one batch, with forward, backward and
        ``optimizer.step()``, and returns the loss. Other groups keep their ratio to the first one.
        The test stops once the smoothed loss exceeds four times its best. Afterwards, and after an
        error, these are restored bit for bit: models, optimizers, scalers, random numbers, and the
        generators of the loader. All ranks call it.

        Raises:
            UsageError: the rates, the number of steps or the function are invalid, or a window of
                accumulation is open.

        Source: Smith, Cyclical Learning Rates for Training Neural Networks, 2017,
        https://arxiv.org/abs/1506.01186
        """
        assert self._session is not None
        rates.check(min_lr, max_lr, steps)
        range_test.check(self._session, function, optimizer, loader)
        tried = (float(min_lr), float(max_lr), steps)
        return range_test.run(self._session, function, optimizer, loader, tried)

    def _arithmetic(self) -> str:
        return (
            f"{self._batch_size} x {self._parts} ranks x {self._batches // self._parts} accumulated"
        )

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]] | None:
        if self._warms_alone:
            return {"warm-up": [f"learning rates grow over the first {self._warmup_steps} steps"]}
        if self._rule is None:
            return None
        size = (
            f"; a step sees {self._arithmetic()} = {self._batches * self._batch_size} samples"
            if self._batch_size
            else ""
        )
        warm = f", reached over {self._warmup_steps} steps" if self._warmup_steps else ""
        root = "sqrt of " if self._rule == "sqrt" else ""
        return {
            "scaling": [
                f"learning rates x {self._factor:g} ({root}{self._batches} batches per"
                f" step){warm}{size}"
            ]
        }


def refuse_without_rate(optimizer: Optimizer, option: str) -> None:
    """Raise UsageError for an optimizer whose groups have no number ``lr``."""
    if not all(
        isinstance(group.get("lr"), int | float | torch.Tensor) for group in optimizer.param_groups
    ):
        raise UsageError(
            f"{option}=... with {type(optimizer).__name__}: its groups have no number 'lr' that"
            f" could be scaled; leave {option} out, or give it one"
        )


def _times(rate: Any, factor: float) -> Any:
    """Return a rate, or a list of rates, times a factor."""
    return [one * factor for one in rate] if isinstance(rate, list | tuple) else rate * factor


def scale_rates(optimizer: Optimizer, done: int, factor: float) -> None:
    """Scale the rates of the groups from number ``done`` on.

    If ``done`` is 0, scale the base rates of existing schedulers too.
    """
    for group in optimizer.param_groups[done:]:
        for name in ("lr", "initial_lr"):
            if name in group:
                group[name] = group[name] * factor
    if not done:
        for scheduler in objects.alive(LRScheduler):
            if scheduler.optimizer is optimizer:
                scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]
                _scale_bounds(scheduler, factor)


def _scale_bounds(scheduler: LRScheduler, factor: float) -> None:
    if isinstance(scheduler, CyclicLR):
        scheduler.max_lrs = [rate * factor for rate in scheduler.max_lrs]
    if isinstance(scheduler, OneCycleLR):
        for group in scheduler.optimizer.param_groups:
            group.update(max_lr=group["max_lr"] * factor, min_lr=group["min_lr"] * factor)


def parts_of_step(session: Context) -> int:
    """Return how many of the script's batches the ranks process in one step.

    It is 1 if the ranks divide the script's batch, or compute it together.
    """
    plugins = [plugin for _, plugin in session.bus.plugins()]
    whole = any(getattr(plugin, "divides_own_batch", False) for plugin in plugins)
    return 1 if whole else session.world.data.parts


def batch_size_of(loader: DataLoader[object]) -> int | None:
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None


Function = Callable[[int], object]
OUT_OF_MEMORY = "CUDA out of memory."  # after an error with this text, accelerate tries less


def search(
    function: Function,
    start: int,
    session: Context,
    unsynchronised: Callable[[], AbstractContextManager[object]],
) -> int:
    """Return the first size that fits on all ranks, by accelerate's find_executable_batch_size.

    All ranks call it. Raises UsageError if accelerate is not installed, or for a wrong argument.
    """
    try:
        from accelerate.utils.memory import find_executable_batch_size, should_reduce_batch_size
    except ImportError:
        raise UsageError(
            "find_batch_size needs accelerate: pip install torchbus-scale[search]"
        ) from None
    _check(function, start)

    def attempt(batch_size: int) -> int:
        error: BaseException | None = None
        try:
            with unsynchronised():
                function(batch_size)
        except Exception as raised:
            if not (isinstance(raised, torch.OutOfMemoryError) or should_reduce_batch_size(raised)):
                raise
            error = raised
        if float(session.reduce(float(error is not None), "max")):
            raise RuntimeError(OUT_OF_MEMORY) from error
        return batch_size

    return int(find_executable_batch_size(attempt, starting_batch_size=start)())


def _check(function: object, start: object) -> None:
    if not callable(function):
        raise UsageError(
            f"find_batch_size({function!r}): pass a function of the batch size that makes a forward"
            " and a backward"
        )
    if isinstance(start, bool) or not isinstance(start, int) or start < 1:
        raise UsageError(
            f"find_batch_size(start={start!r}): it must be a number of samples, at least 1"
        )
