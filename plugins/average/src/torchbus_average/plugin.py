"""Decides when weights are averaged, and when the averages replace them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn
from torchbus import objects
from torchbus.plugin import Context, UsageError, expect, hookimpl

from torchbus_average import events
from torchbus_average.averages import Averages, State
from torchbus_strategy.collectives import broadcast_object


class Average:
    """Averages the weights after optimizer steps, and evaluates with the averages.

    With neither ``ema_decay`` nor ``swa_start`` nothing is averaged. From ``model.eval()`` to
    ``model.train()`` the averages replace the parameters. The averages equal those of
    ``torch.optim.swa_utils.AveragedModel``: EMA bit for bit, SWA up to rounding.

    Args:
        ema_decay: the decay of an exponential moving average: average * decay + value *
            (1 - decay).
        swa_start: stochastic weight averaging: the mean of all values after this number of steps of
            the optimizer.
        every: average after every ``every`` steps of the optimizer. ``len(loader)`` is once
            per epoch.
        buffers: average the models' buffers as well, such as BatchNorm's statistics.
            Integers, such as BatchNorm's number of batches, are not averaged.
        in_eval: False leaves the weights in place in eval mode; then use ``s.averaged()``.

    Raises:
        UsageError: an option has another type or value, or an optimizer steps on averages.

    Source: Tarvainen and Valpola, https://arxiv.org/abs/1703.01780; Izmailov et al.,
    https://arxiv.org/abs/1803.05407
    """

    declares_events = events

    owns = ("average of the weights",)
    verbs = ("averaged",)
    hears_trials = False
    tried_with = ({"ema_decay": 0.5},)

    def __init__(
        self,
        *,
        ema_decay: float | None = None,
        swa_start: int | None = None,
        every: int = 1,
        buffers: bool = False,
        in_eval: bool = True,
    ) -> None:
        check(ema_decay, swa_start, every, buffers, in_eval)
        self._update = (
            get_swa_multi_avg_fn() if ema_decay is None else get_ema_multi_avg_fn(ema_decay)
        )
        self._what = (
            f"an exponential moving average with decay {ema_decay:g}"
            if ema_decay is not None
            else f"the mean of all values after step {swa_start}"
            if swa_start is not None
            else ""
        )
        self._start = swa_start or 0
        self._every = every
        self._with_buffers = buffers
        self._in_eval = in_eval
        self._of: WeakKeyDictionary[Optimizer, Averages] = WeakKeyDictionary()
        self._of_models: WeakKeyDictionary[Module, Averages] = WeakKeyDictionary()
        """Also by model, because ``model = train()`` frees the optimizer before the evaluation."""
        self._held_in = False

    # Events --------------------------------------------------------------------------------------

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session
        self._steps = session.steps.follow()
        session.on_close.callback(self._swap_out)

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if self._what and optimizer is not None and self._session.captures(optimizer):
            self._of.setdefault(optimizer, Averages(self._update, self._with_buffers))

    @hookimpl
    def before_optimizer_step(self, optimizer: Optimizer) -> None:
        if optimizer in self._of and self._of[optimizer].are_in:
            raise UsageError(
                f"{type(optimizer).__name__}.step() while averages replace its weights, since"
                " model.eval() or in s.averaged(): call model.train() before training continues,"
                " or pass session(Average(..., in_eval=False))"
            )

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        made = self._steps.of(optimizer) - self._start
        if optimizer in self._of and made > 0 and made % self._every == 0:
            averages = self._of[optimizer]
            averages.add(optimizer)
            self._of_models.update(dict.fromkeys(averages.models, averages))

    @hookimpl
    def mode_changed(self, model: Module, training: bool) -> None:
        if self._in_eval and not self._held_in:
            for averages in self._all():
                (averages.swap_out if training else averages.swap_in)(model)

    @hookimpl(optionalhook=True)
    def before_restore(self) -> None:
        """Restore the trained weights now; later they would overwrite the checkpoint's."""
        self._swap_out()

    @hookimpl(trylast=True)
    def session_end(self) -> None:
        """Restore the trained weights, after the last checkpoint and before they are gathered."""
        self._swap_out()

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        if not self._what:
            return {"average": ["nothing: neither ema_decay nor swa_start was given"]}
        counts = ", ".join(str(one.count) for one in self._all())
        how = "after model.eval() and in s.averaged()" if self._in_eval else "in s.averaged()"
        lines = [
            f"{self._what}, in place {how}",
            f"values so far, by optimizer: {counts or 'none'}",
        ]
        return {"average": lines}

    # Verbs ---------------------------------------------------------------------------------------

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, replace all weights by their averages, whatever mode the models are in.

        Buffers that change inside, as by ``torch.optim.swa_utils.update_bn``, are restored at the
        end. Before the first average it changes nothing. Any rank may call it; under fsdp all ranks
        must call it, as they call forward. Raises UsageError if nothing is averaged.
        """
        if not self._what:
            raise UsageError(
                "s.averaged(): nothing is averaged. Pass ema_decay=..., such as 0.999, or"
                " swa_start=..., the number of optimizer steps before the average begins"
            )
        found = self._all()
        replaced = [averages for averages in found if not averages.are_in]
        held_in, self._held_in = self._held_in, True
        with retained_buffers(model for one in found for model in one.models):
            for averages in found:
                averages.swap_in()
            try:
                yield
            finally:
                self._held_in = held_in
                for averages in replaced:
                    averages.swap_out()

    # Checkpoints ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, object]:
        """Return the state, with the averages on rank 0 only. All ranks call it.

        Raises UsageError inside ``averaged()``.
        """
        if self._held_in:
            raise UsageError(
                "s.save() inside s.averaged(): a run resumes from a checkpoint, so it needs the"
                " trained weights. Save the averages with torch.save(model.state_dict(), path)"
            )
        is_main = self._session.is_main
        return {"averages": [one.state(is_main, self._gathered) for one in self._of.values()]}

    def _gathered(self, tensor: Tensor, state: State) -> State:
        found: State | None = self._session.bus.hook.gather_average(tensor=tensor, state=state)
        return state if found is None else found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the averages of rank 0. All ranks call it."""
        for (optimizer, averages), mine in zip(self._of.items(), state["averages"], strict=True):
            if self._session.world_size > 1:
                mine = mine | {"entries": self._of_rank0(mine["entries"])}
            averages.load(optimizer, mine)

    def _of_rank0(self, entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Broadcast rank 0's entries one by one, so that no other rank holds all of them."""
        for number in range(broadcast_object(len(entries))):
            yield broadcast_object(entries[number] if self._session.is_main else None)

    def _all(self) -> list[Averages]:
        """Return each average once: of live optimizers, and the latest of each live model."""
        return list(dict.fromkeys([*self._of.values(), *self._of_models.values()]))

    def _swap_out(self) -> None:
        for averages in self._all():
            averages.swap_out()


@contextmanager
def retained_buffers(models: Iterable[Module]) -> Iterator[None]:
    """Restore the buffers of these models at the end, bit for bit."""
    buffers = {id(one): one for model in models for one in model.buffers()}
    before = [(one, one.detach().clone()) for one in buffers.values()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def check(
    ema_decay: float | None,
    swa_start: int | None,
    every: int,
    buffers: bool,
    in_eval: bool,
) -> None:
    """Raise UsageError if an option has a wrong type or value, or if they don't fit together."""
    expect("ema_decay", ema_decay, (int, float, type(None)), "a number from 0 to 1")
    expect(
        "swa_start",
        swa_start,
        (int, type(None)),
        "a number of optimizer steps: a session does not know beforehand how long the loop runs",
    )
    expect("every", every, int, "a number of optimizer steps")
    expect("buffers", buffers, bool, "True or False")
    expect("in_eval", in_eval, bool, "True or False")
    if ema_decay is not None and swa_start is not None:
        raise UsageError(
            f"ema_decay={ema_decay} and swa_start={swa_start}: a session keeps one average of the"
            " weights. Pass only one of them"
        )
    if ema_decay is not None and not 0 <= ema_decay <= 1:
        raise UsageError(f"ema_decay={ema_decay}: it must be from 0 to 1")
    if swa_start is not None and swa_start < 0:
        raise UsageError(f"swa_start={swa_start}: it must be 0 or more optimizer steps")
    if every < 1:
        raise UsageError(f"every={every}: it must be 1 or more optimizer steps")


class HasModes(Protocol):
    """The interface of optimizers of the package schedulefree."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


class ScheduleFree:
    """Calls ``train()`` and ``eval()`` of optimizers when the loop calls those of their models.

    Args:
        schedule_free: call ``optimizer.train()`` and ``optimizer.eval()`` together with
            ``model.train()`` and ``model.eval()``, as schedule-free optimizers need. The optimizers
            must have both methods.

    Raises:
        UsageError: the option has another type, or an optimizer lacks a method.

    Source: Defazio et al., https://arxiv.org/abs/2405.15682
    """

    def __init__(self, *, schedule_free: bool = True) -> None:
        expect("schedule_free", schedule_free, bool, "True or False")
        self._active = schedule_free
        self._optimizers: WeakKeyDictionary[Optimizer, list[Module]] = WeakKeyDictionary()

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if not self._active or optimizer is None or not self._session.captures(optimizer):
            return
        if not hasattr(optimizer, "train") or not hasattr(optimizer, "eval"):
            raise UsageError(
                f"schedule_free=True: {type(optimizer).__name__} has no train() and eval(). Use an"
                " optimizer of the package schedulefree, or leave the option out"
            )
        self._optimizers[optimizer] = []

    @hookimpl
    def optimizer_ready(self, optimizer: Optimizer) -> None:
        """Set the training mode, once the optimizer has all groups."""
        if optimizer in self._optimizers:
            cast(HasModes, optimizer).train()

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]] | None:
        how = "optimizers: train() and eval() are called as those of their models"
        return {"schedule-free": [how]} if self._active else None

    @hookimpl
    def mode_changed(self, model: Module, training: bool) -> None:
        inside = {id(part) for part in model.modules()}
        for optimizer, models in self._optimizers.items():
            models = models or self._find(optimizer)
            if models and all(id(one) in inside for one in models):
                modes = cast(HasModes, optimizer)
                (modes.train if training else modes.eval)()

    def _find(self, optimizer: Optimizer) -> list[Module]:
        """Return the models of an optimizer, and store them if there are any."""
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        self._optimizers[optimizer] = found = objects.models_of(parameters)
        return found
