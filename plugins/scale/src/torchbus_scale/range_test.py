"""The learning-rate range test: makes real steps at increasing rates, and undoes them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torchbus import objects
from torchbus.plugin import Context, UsageError, hookimpl

from torchbus_log.trackers.values import LoggedTable
from torchbus_scale.rates import LearningRates, has_diverged, spread

PutBack = Callable[[], object]


@contextmanager
def restored(loader: DataLoader[object]) -> Iterator[None]:
    """At the end, restore all models, optimizers and scalers, and the generators of a loader."""
    with ExitStack() as stack, torch.no_grad():
        modules = objects.alive(Module)
        stack.callback(_tensors(modules))
        stack.callback(_flags(modules))
        for optimizer in objects.optimizers():
            stack.callback(_optimizer(optimizer))
        for scaler in objects.alive(GradScaler):
            stack.callback(scaler.load_state_dict, copy.deepcopy(scaler.state_dict()))
        for generator in _generators(loader):
            stack.callback(generator.set_state, generator.get_state())
        with torch.enable_grad():
            yield


def _tensors(modules: list[Module]) -> PutBack:
    """Copy all parameters and buffers to host memory, and the gradients on their devices."""
    held = [
        one for module in modules for one in (*module.parameters(False), *module.buffers(False))
    ]
    held += [
        one
        for optimizer in objects.optimizers()
        for group in optimizer.param_groups
        for one in group["params"]
    ]
    tensors = list({id(one): one for one in held if not one.is_meta}.values())
    values = [_here(one).to("cpu", copy=True) for one in tensors]
    gradients = [(one, one.grad, _copied(one.grad)) for one in tensors if one.is_leaf]

    def put_back() -> None:
        for tensor, value in zip(tensors, values, strict=True):
            _here(tensor).copy_(value)
        for parameter, gradient, before in gradients:
            parameter.grad = gradient
            if gradient is not None:
                _here(gradient).copy_(_here(before))

    return put_back


def _flags(modules: list[Module]) -> PutBack:
    modes = [(module, module.training) for module in modules]
    trains = [(one, one.requires_grad) for module in modules for one in module.parameters(False)]

    def put_back() -> None:
        for module, mode in modes:
            module.training = mode
        for parameter, flag in trains:
            parameter.requires_grad_(flag)

    return put_back


def _optimizer(optimizer: Optimizer) -> PutBack:
    groups = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
    rates = [_copied({k: v for k, v in group.items() if k != "params"}) for group in groups]
    states = {parameter: _copied(entry) for parameter, entry in optimizer.state.items()}

    def put_back() -> None:
        for group, values in zip(optimizer.param_groups, rates, strict=False):
            group.update(values)
        optimizer.state.clear()
        optimizer.state.update(states)

    return put_back


def _copied(value: Any) -> Any:
    """Return a deep copy of tensors, dicts, lists and tuples; other objects are shared."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return value


def _here(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, in the same memory."""
    found: Any = tensor.detach()
    part: Tensor = found.to_local() if hasattr(found, "full_tensor") else found
    return part


def _generators(loader: DataLoader[object]) -> list[torch.Generator]:
    """Return the generators of a loader and of its samplers."""
    parts: list[Any] = [loader, loader.sampler, loader.batch_sampler]
    parts.append(getattr(loader.batch_sampler, "sampler", None))
    found = [getattr(part, "generator", None) for part in parts]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


Function = Callable[[object], object]
CURVE = ("learning rate", "loss, smoothed")


class Trial:
    """Disables schedulers during the test, and counts the optimizer's steps."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.steps = 0

    @hookimpl(tryfirst=True)
    def skip_scheduler(self, scheduler: LRScheduler) -> bool | None:
        return True

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self.steps += optimizer is self._optimizer


def check(session: Context, function: object, optimizer: object, loader: object) -> None:
    """Raise UsageError for arguments of other types, and in an open window of accumulation."""
    if not callable(function):
        raise UsageError(
            f"find_lr({function!r}): pass a function of a batch that makes a forward, a backward"
            " and a step, and returns the loss"
        )
    if not isinstance(optimizer, Optimizer) or not isinstance(loader, DataLoader):
        raise UsageError(
            f"find_lr(function, {type(optimizer).__name__}, {type(loader).__name__}): pass the"
            " function, an optimizer of torch, and a DataLoader"
        )
    if any(getattr(plugin, "window_is_open", False) for _, plugin in session.bus.plugins()):
        raise UsageError(
            "find_lr in an open window of gradient accumulation: its gradients would be mixed with"
            " those of the test. Call it before the loop, or after a real step"
        )


@contextmanager
def without_effect(session: Context) -> Iterator[None]:
    """Inside, plugins do not count, log or save steps.

    Plugins with ``hears_trials = False`` get no events. At the end, the random state and the states
    of all other plugins are restored. The caller restores models and optimizers.
    """
    plugins: list[Any] = [one for _, one in session.bus.plugins()]
    silent = [one for one in plugins if not getattr(one, "hears_trials", True)]
    drawn = session.random.state()
    with session.bus.muted(silent), restored_plugins(session):
        try:
            yield
        finally:
            session.random.load(drawn)


@contextmanager
def restored_plugins(session: Context) -> Iterator[None]:
    """At the end, restore the states of the plugins that get events of trials."""
    plugins: list[Any] = [one for _, one in session.bus.plugins()]
    hearing = [one for one in plugins if getattr(one, "hears_trials", True)]
    states = [(one, one.state_dict()) for one in hearing if hasattr(one, "load_state_dict")]
    try:
        yield
    finally:
        for one, state in states:
            one.load_state_dict(state)


def run(
    session: Context,
    function: Function,
    optimizer: Optimizer,
    loader: DataLoader[object],
    rates: tuple[float, float, int],
) -> LearningRates:
    """Run the range test, and return its result. All ranks call it."""
    with without_effect(session), restored(loader):
        trial = Trial(optimizer)
        session.bus.register(trial, "scale.trial")
        try:
            found = _run(session, function, optimizer, loader, rates, trial)
        finally:
            session.bus.unregister(trial)
    if session.is_main and session.bus.has_listeners("table_ready"):
        rows = tuple(zip(found.lrs, found.smoothed, strict=True))
        # the last loss of a diverged test would flatten the curve, or is not finite
        curve = LoggedTable(CURVE, rows[:-1] if found.diverged else rows, CURVE)
        session.bus.hook.table_ready(name="find_lr", table=curve, step=session.steps.count)
    return found


def _run(
    session: Context,
    function: Function,
    optimizer: Optimizer,
    loader: DataLoader[object],
    rates: tuple[float, float, int],
    trial: Trial,
) -> LearningRates:
    batches, ratios = _endless(loader), _ratios(optimizer)
    window = max(getattr(plugin, "grad_batches", 1) for _, plugin in session.bus.plugins())
    lrs: list[float] = []
    losses: list[float] = []
    for lr in spread(*rates):
        _set(optimizer, lr, ratios)
        before, found = trial.steps, list[float]()
        while trial.steps == before and len(found) < window:
            found.append(_loss(session, function(next(batches)), lr, first=not losses))
        lrs.append(lr)
        losses.append(sum(found) / len(found))
        if not trial.steps:
            raise UsageError(
                "find_lr: the function made no step of the optimizer: let it do what the loop does"
                " with a batch, forward, backward and optimizer.step(), and return the loss"
            )
        if has_diverged(losses):
            return LearningRates(tuple(lrs), tuple(losses), True)
    return LearningRates(tuple(lrs), tuple(losses), False)


def _endless(loader: DataLoader[object]) -> Iterator[object]:
    for number in count():
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise UsageError(f"find_lr: pass {number} over the loader gave no batch")


def _ratios(optimizer: Optimizer) -> list[float]:
    """Return the ratio of each group's rate to the first group's, or 1 if that is 0."""
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    return [rate / rates[0] if rates[0] else 1.0 for rate in rates]


def _set(optimizer: Optimizer, lr: float, ratios: list[float]) -> None:
    for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr * ratio)
        else:
            group["lr"] = lr * ratio


def _loss(session: Context, returned: object, lr: float, first: bool) -> float:
    """Return the mean over ranks of the loss that the function returned. All ranks call it.

    Raises UsageError if it is not one number, or if the first one is not finite.
    """
    value = returned.detach() if isinstance(returned, Tensor) else returned
    if not isinstance(value, int | float | Tensor) or torch.as_tensor(value).numel() != 1:
        raise UsageError(
            f"find_lr: the function returned {type(returned).__name__}: let it return the loss of"
            " the batch, one number"
        )
    loss = float(session.reduce(float(value)))
    if first and not math.isfinite(loss):
        raise UsageError(
            f"find_lr: the first loss, at lr={lr:g}, is {loss}: choose a smaller min_lr, or look"
            " for the cause in the model or the data"
        )
    return loss
