"""Freezes the modules that ``unfreeze=`` names, and unfreezes each at its step or epoch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchbus import objects
from torchbus.plugin import Context, UsageError, expect, hookimpl, needs

from torchbus_finetune import frozen
from torchbus_finetune.frozen import FrozenModels, FrozenModules

NO_EPOCH = -1


class FinetuneState(TypedDict):
    """The place in the schedule: the real steps, and the epoch of ``s.epochs``, or -1."""

    steps: int
    epoch: int


@needs("unfreeze", "unfreeze_lr", "freeze_batchnorm")
class Finetune:
    """Freezes modules at the beginning, and unfreezes them at given steps or epochs.

    Args:
    Args:
        unfreeze: names of modules, or patterns such as "backbone.*", and when to unfreeze them: a
            number of real optimizer steps, or an epoch of ``s.epochs``, such as "epoch 2".
        unfreeze_lr: the factor by which the first group's learning rate is multiplied, for
            parameters that the session adds to the optimizer.
        freeze_batchnorm: whether frozen layers with running statistics stay in eval mode.

    Frozen parameters have ``requires_grad=False``. All ranks unfreeze them after the same real step
    of an optimizer of the same model.

    Raises:
        UsageError: an option has another type or value, or names no parameter.
        Unsupported: the strategy can't unfreeze parameters.

    Source: Howard and Ruder, Universal Language Model Fine-tuning for Text Classification, 2018,
    https://arxiv.org/abs/1801.06146
    """

    owns = ("frozen modules",)
    hears_trials = False
    tried_with = ({"unfreeze": {"0": 1}},)

    def __init__(
        self,
        unfreeze: Mapping[str, int | str] | None = None,
        *,
        unfreeze_lr: float = 1.0,
        freeze_batchnorm: bool = True,
    ) -> None:
        self._schedule = frozen.read(unfreeze)
        expect("freeze_batchnorm", freeze_batchnorm, bool, "True or False")
        self._factor = frozen.rate(unfreeze_lr)
        self._frozen = FrozenModels(self._schedule, freeze_batchnorm)
        self._added: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._epoch = NO_EPOCH

    # Freeze --------------------------------------------------------------------------------------

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session
        self._steps = session.steps.follow()
        if self._schedule:
            frozen.refuse_strategy(session)
            first = frozen.ScheduleCheck(session, self._schedule, self._frozen, self._problem)
            session.bus.register(first, "finetune.first_backward")

    @hookimpl(trylast=True)
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        """Freeze the models that an optimizer trains, as soon as they are known."""
        if not self._schedule or optimizer is None or not self._session.captures(optimizer):
            return
        self._added.setdefault(optimizer, 0)
        for model in [] if self._frozen.have(parameters) else objects.models_of(parameters):
            if model not in self._frozen.models and self._session.captures(model):
                self._frozen.put(model, self._steps.count, self._epoch)

    @hookimpl
    def mode_changed(self, training: bool) -> None:
        for model in self._frozen.models if training else ():
            self._frozen.keep_statistics(model)

    @hookimpl
    def optimizer_ready(self, optimizer: Optimizer) -> None:
        """Add the frozen parameters that the optimizer lacks, in one more group.

        So schedulers and checkpoints know the group from the beginning. The optimizer skips them
        until they have gradients.
        """
        if optimizer not in self._added:
            return
        for model in self._frozen.models:
            named = self._frozen.named(model).values()
            missing = groups_missing(model, named, optimizer, list(self._added))
            if missing:
                add(optimizer, missing, self._factor)
                self._added[optimizer] += len(missing)
            frozen.refuse_all_frozen(model)

    @hookimpl(optionalhook=True)
    def before_restore(self) -> None:
        for optimizer in list(self._added):
            self.optimizer_ready(optimizer)

    def _problem(self) -> str:
        """Return a message about options that do not fit this loop, or ""."""
        later = next((one for one in self._schedule if one.epoch is not None), None)
        if later is not None and self._epoch == NO_EPOCH:
            return (
                f"unfreeze={{{later.pattern!r}: '{later.when}'}}: the session does not know the"
                " loop's epochs. Write `for epoch in s.epochs(...):`, or give a number of real"
                " steps"
            )
        if self._factor != 1.0 and not any(self._added.values()):
            return (
                f"unfreeze_lr={self._factor}: the optimizers have all parameters already, so it"
                " would do nothing. Give the rates in their groups, and leave it out"
            )
        return ""

    # Unfreeze ------------------------------------------------------------------------------------

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        if self._steps.count >= self._frozen.next_step:
            held = groups_held(optimizer)
            self._unfreeze(
                model
                for model in self._frozen.models
                if any(id(one) in held for one in model.parameters())
            )

    @hookimpl(optionalhook=True, tryfirst=True)
    def end_epochs(self, epoch: int) -> None:
        self._epoch = epoch
        self._unfreeze(self._frozen.models)

    def _unfreeze(self, models: Iterable[Module]) -> None:
        for model in models:
            for entry, done in self._frozen.unfreeze(model, self._steps.count, self._epoch).items():
                self._say(entry, model, done)

    def _is_due(self, entry: FrozenModules) -> bool:
        return entry.is_due(self._steps.count, self._epoch)

    def _say(self, entry: FrozenModules, model: Module, done: list[Parameter]) -> None:
        if done and self._session.is_main:
            print(
                f"torchbus: {entry.when}: {entry.pattern} of {type(model).__name__} is trained from"
                f" now on: {sum(one.numel() for one in done)} parameters in {len(done)} tensors",
                file=sys.stderr,
                flush=True,
            )

    # State ---------------------------------------------------------------------------------------

    def state_dict(self) -> FinetuneState:
        """Return the place in the schedule, for checkpoints."""
        return {"steps": self._steps.count, "epoch": self._epoch}

    def load_state_dict(self, state: FinetuneState) -> None:
        """Freeze and unfreeze all models as at this place in the schedule."""
        self._epoch = state["epoch"]
        for model in self._frozen.models:
            self._frozen.put(model, state["steps"], self._epoch)

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]] | None:
        lines = [
            f"{one.pattern}: {'trained since' if self._is_due(one) else 'frozen until'} {one.when}"
            for one in self._schedule
        ]
        lines += [
            f"{type(optimizer).__name__}: {count} tensors added, at {self._factor:g} x lr"
            for optimizer, count in self._added.items()
            if count
        ]
        return {"unfreezing": lines} if lines else None


RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
"""The keys of a parameter group that are learning rates."""
RATES_BY_GROUP = ("base_lrs", "max_lrs")
OTHERS_BY_GROUP = ("lr_lambdas", "min_lrs", "base_momentums", "max_momentums")
"""Attributes of torch's schedulers that are lists with one value for each group."""


def groups_missing(
    model: Module,
    named: Iterable[dict[str, Parameter]],
    optimizer: Optimizer,
    known: Iterable[Optimizer],
) -> dict[str, Parameter]:
    """Return the parameters of an optimizer's model that are unfrozen later, and in no optimizer.

    Raises UsageError if there are any and several optimizers train the model.
    """
    mine = {id(one) for one in model.parameters()}
    training = [one for one in known if mine & groups_held(one)]
    if optimizer not in training:
        return {}
    there = set[int]().union(*map(groups_held, training))
    found = {name: one for parts in named for name, one in parts.items() if id(one) not in there}
    if found and len(training) > 1:
        raise UsageError(
            f"unfreeze=...: {next(iter(found))} is in no optimizer, and {len(training)} optimizers"
            f" train {type(model).__name__}: put it into the one that is to train it. A frozen"
            " parameter has no gradient, and is not stepped"
        )
    return found


def groups_held(optimizer: Optimizer) -> set[int]:
    """Return the ids of an optimizer's parameters."""
    return {id(one) for group in optimizer.param_groups for one in group["params"]}


def add(optimizer: Optimizer, parameters: dict[str, Parameter], factor: float) -> None:
    """Add a group with the first group's hyperparameters, and its learning rates times ``factor``.

    Each scheduler continues as if the group had existed before. Raises UsageError for a scheduler
    that is not torch's.
    """
    schedulers = [one for one in objects.alive(LRScheduler) if one.optimizer is optimizer]
    _refuse_unknown(schedulers, optimizer)
    before, first = len(optimizer.param_groups), optimizer.param_groups[0]
    copied = {key: value for key, value in first.items() if key not in ("params", "param_names")}
    copied |= {key: copied[key] * factor for key in RATES if key in copied}
    named = "param_names" in first  # torch accepts names for all groups or for none
    added = list(parameters.items()) if named else list(parameters.values())
    optimizer.add_param_group({"params": added, **copied})
    # a listener may have scaled the new group's rates, which were already scaled
    optimizer.param_groups[-1].update(copied)
    for scheduler in schedulers:
        _extend(scheduler, before, factor)


def _extend(scheduler: Any, groups: int, factor: float) -> None:
    for name in (*RATES_BY_GROUP, *OTHERS_BY_GROUP):
        values = getattr(scheduler, name, None)
        if isinstance(values, list) and len(values) == groups:
            values.append(values[0] * factor if name in RATES_BY_GROUP else values[0])


def _refuse_unknown(schedulers: list[LRScheduler], optimizer: Optimizer) -> None:
    """Raise UsageError for a scheduler that is not torch's, whose lists by group are unknown."""
    for one in schedulers:
        if not type(one).__module__.startswith("torch.optim."):
            raise UsageError(
                f"unfreeze=...: {type(optimizer).__name__} lacks parameters that are unfrozen"
                f" later, and {type(one).__name__}, its scheduler, may not accept another group."
                " Give the optimizer all parameters: a frozen one has no gradient, and is not"
                " stepped"
            )
