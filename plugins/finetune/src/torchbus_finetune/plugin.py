"""The plugin: its options and events."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TypedDict
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Context, expect, hookimpl, needs

from torchbus_finetune import checks, groups, schedule
from torchbus_finetune.frozen import FrozenModels
from torchbus_finetune.schedule import Entry

NO_EPOCH = -1


class State(TypedDict):
    """Where the loop was: its real steps, and the epoch of ``s.epochs``, or -1."""

    steps: int
    epoch: int


@needs("unfreeze", "unfreeze_lr", "freeze_batchnorm")
class Finetune:
    """Freezes modules at the beginning, and unfreezes them at given steps or epochs.

    Args:
        unfreeze: names of modules, or patterns such as "backbone.*", and when to unfreeze them: a
            number of real optimizer steps, or an epoch of ``s.epochs``, such as "epoch 2".
        unfreeze_lr: factor of the first group's learning rate, for modules that the optimizer
            lacks and the session adds.
        freeze_batchnorm: whether frozen layers keep their running statistics, in eval mode.

    Frozen parameters have ``requires_grad=False``. All ranks unfreeze them after the same real step
    of an optimizer of the same model.

    Source: Howard and Ruder, Universal Language Model Fine-tuning for Text Classification, 2018,
    https://arxiv.org/abs/1801.06146
    """

    owns = ("frozen modules",)
    hears_trials = False

    def __init__(
        self,
        unfreeze: Mapping[str, int | str] | None = None,
        *,
        unfreeze_lr: float = 1.0,
        freeze_batchnorm: bool = True,
    ) -> None:
        self._schedule = schedule.read(unfreeze)
        expect("freeze_batchnorm", freeze_batchnorm, bool, "True or False")
        self._factor = checks.rate(unfreeze_lr)
        self._frozen = FrozenModels(self._schedule, freeze_batchnorm)
        self._added: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._epoch = NO_EPOCH

    # Freeze --------------------------------------------------------------------------------------

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session
        self._steps = session.steps.follow()
        if self._schedule:
            checks.refuse_strategy(session)
            first = checks.FirstBackward(session, self._schedule, self._frozen, self._problem)
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
        """Give it the parameters that it is to train later: torch leaves out what has no gradient.

        So schedulers and checkpoints know the group from the beginning.
        """
        if optimizer not in self._added:
            return
        for model in self._frozen.models:
            named = self._frozen.named(model).values()
            missing = groups.missing(model, named, optimizer, list(self._added))
            if missing:
                groups.add(optimizer, missing, self._factor)
                self._added[optimizer] += len(missing)
            checks.refuse_all_frozen(model)

    @hookimpl(optionalhook=True)
    def before_restore(self) -> None:
        for optimizer in list(self._added):
            self.optimizer_ready(optimizer)

    def _problem(self) -> str:
        """Return what is wrong with the options in this loop, or ""."""
        later = next((one for one in self._schedule if one.epoch is not None), None)
        if later is not None and self._epoch == NO_EPOCH:
            return (
                f"unfreeze={{{later.pattern!r}: '{later.when}'}}: nothing tells the session of"
                " epochs. Write `for epoch in s.epochs(...):`, or give a number of real steps"
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
            held = groups.held(optimizer)
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

    def _is_due(self, entry: Entry) -> bool:
        return entry.is_due(self._steps.count, self._epoch)

    def _say(self, entry: Entry, model: Module, done: list[Parameter]) -> None:
        if done and self._session.is_main:
            print(
                f"torchbus: {entry.when}: {entry.pattern} of {type(model).__name__} is trained from"
                f" now on: {sum(one.numel() for one in done)} parameters in {len(done)} tensors",
                file=sys.stderr,
                flush=True,
            )

    # State ---------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """The place in the schedule, for checkpoints."""
        return {"steps": self._steps.count, "epoch": self._epoch}

    def load_state_dict(self, state: State) -> None:
        """Let all models be as they are to be at this place."""
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
