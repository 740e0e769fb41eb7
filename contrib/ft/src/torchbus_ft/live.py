"""Live recovery: a new replica gets the state of a training one, between two steps."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchbus import objects
from torchbus.plugin import Context, RanksDiverged, hookimpl

from torchbus_ft.passes import PassCounter
from torchbus_strategy.backward import gradients
from torchbus_strategy.collectives import in_parts


class Undo:
    """Copies of parameters, optimizer state and counters, to undo a step with a closure."""

    def __init__(self, optimizer: Optimizer, session: Context, live: Live) -> None:
        self._optimizer = optimizer
        self._session = session
        self._live = live
        self._parameters = [
            (one, one.detach().clone())
            for group in optimizer.param_groups
            for one in group["params"]
        ]
        self._state = copy.deepcopy(optimizer.state_dict())
        self._counters = live.counters()

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the copies."""
        for one, before in self._parameters:
            one.data.copy_(before)
        self._optimizer.load_state_dict(self._state)
        self._live.count(self._counters)


State = dict[str, Any]
RESUMED = "ft.resumed"
"""The plugin whose state only checkpoints contain."""
Counters = tuple[int, int, list[tuple[int, bool]]]
UNLIKE = (
    "replica {!r} does not train the same model as the replicas that it joins: {} here, {} there."
    " Run the same script with the same settings in all replicas. The others continue unchanged"
)


class Trains(Protocol):
    """The trained parameters and their models."""

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters, frozen ones too, in the same order on all replicas."""

    def models(self, parameters: Sequence[Tensor]) -> list[Module]:
        """The models that own the parameters."""


class Live:
    """Collects this rank's state for a replica that joins, and restores such a state.

    The rank may hold only shards of ``trained``. ``gradients`` runs backward; it is None under
    fsdp. ``pack`` makes a state that can be sent, and ``unpack`` reverses this.
    """

    hears_trials = False

    def __init__(self, session: Context, name: str, passes: PassCounter) -> None:
        self._session = session
        self._name = name
        self._passes = passes
        self.optimizers: list[Optimizer] = []
        self.gradients: gradients.GradientSync | None = None
        self.trained: Trains | None = None
        self._models: list[weakref.ref[Module]] | None = None
        self.on_load: Callable[[], None] = lambda: None
        self.pack: Callable[[Any], Any] = lambda state: state
        self.unpack: Callable[[Any], Any] = lambda state: state

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if optimizer is not None and not any(optimizer is one for one in self.optimizers):
            self.optimizers.append(optimizer)

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters of the trained models."""
        assert self.trained is not None
        return self.trained.parameters

    def models(self) -> list[Module]:
        """Return the trained models. The search takes tens of milliseconds, so it runs once."""
        if self._models is None:
            assert self.trained is not None
            found = self.trained.models(self.trained.parameters)
            self._models = [weakref.ref(model) for model in found]
        return [model for model in (known() for known in self._models) if model is not None]

    def buffers(self) -> list[Tensor]:
        """Return the buffers of the trained models, each once, without empty ones."""
        found = {id(one): one for model in self.models() for one in model.buffers() if one.numel()}
        return list(found.values())

    def forget(self) -> None:
        """Look for the models again, because the parameters have changed."""
        self._models = None

    # The state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """Return the state. Buffers are copies, because forward may change them during the send."""
        with in_parts(self._session):
            found: State = self.pack(self._state())
            return found

    def _state(self) -> State:
        session, trained = self._session, self.trained
        assert trained is not None and session.job is not None
        return {
            "what": self._what(),
            "parameters": [one.detach() for one in trained.parameters],
            "buffers": [one.detach().clone() for one in self.buffers()],
            "things": [one.state_dict() for one in self._things()],
            "plugins": {name: plugin.state_dict() for name, plugin in self._plugins()},
            "backwards": session.job.backwards,
            "steps": self.counters(),
            "random": session.random.state(),
            "passes": self._passes.state(),
        }

    def load(self, state: State) -> None:
        """Continue from another replica's state.

        Raises RanksDiverged if that replica trains another model.
        """
        self._compare(state["what"])
        with in_parts(self._session):
            self._load(self.unpack(state))
        self.on_load()

    def _load(self, state: State) -> None:
        session, trained = self._session, self.trained
        assert trained is not None and session.job is not None
        self._copy([*trained.parameters, *self.buffers()], state["parameters"] + state["buffers"])
        for thing, saved in zip(self._things(), state["things"], strict=True):
            thing.load_state_dict(saved)
        for name, plugin in self._plugins():
            if name in state["plugins"]:
                plugin.load_state_dict(state["plugins"][name])
        session.job.backwards = state["backwards"]
        self.count(state["steps"])
        self._passes.load(state["passes"], state["random"])

    def counters(self) -> Counters:
        """Return the counts of steps: of ``gradients``, of the session, and of each optimizer."""
        steps, known = self._session.steps, self.optimizers
        made = [(steps.of(one), steps.has_stepped(one)) for one in known]
        return 0 if self.gradients is None else self.gradients.steps, steps.count, made

    def count(self, counters: Counters) -> None:
        """Continue from these counts."""
        of_gradients, count, made = counters
        if self.gradients is not None:
            self.gradients.steps = of_gradients
        pairs = list(zip(self.optimizers, made, strict=True))
        stepped = [one for one, (_, has) in pairs if has]
        self._session.steps.go_on(count, [(one, number) for one, (number, _) in pairs], stepped)

    @torch.no_grad()
    def _copy(self, mine: list[Tensor], theirs: list[Tensor]) -> None:
        for one, other in zip(mine, theirs, strict=True):
            one.data.copy_(other)

    def _things(self) -> list[Any]:
        """Return the optimizers, their schedulers, and all gradient scalers, in a common order."""
        numbers = {id(one): number for number, one in enumerate(self.optimizers)}
        schedulers = [one for one in objects.alive(LRScheduler) if id(one.optimizer) in numbers]
        schedulers.sort(key=lambda one: (numbers[id(one.optimizer)], type(one).__name__))
        return [*self.optimizers, *schedulers, *objects.alive(GradScaler)]

    def _plugins(self) -> Iterator[tuple[str, Any]]:
        for name, plugin in self._session.bus.plugins():
            has_state = hasattr(plugin, "state_dict") and hasattr(plugin, "load_state_dict")
            if has_state and name != RESUMED:
                yield name, plugin

    # The comparison ------------------------------------------------------------------------------

    def _what(self) -> list[str]:
        """Describe the trained model in lines that must be equal on all replicas."""
        models = self.models()
        shapes = [f"{str(one.dtype)[6:]}{list(one.shape)}" for one in self.parameters]
        return [
            f"models {', '.join(type(model).__name__ for model in models) or 'none'}",
            f"parameters {' '.join(shapes)}",
            f"buffers {' '.join(str(list(one.shape)) for one in self.buffers())}",
            f"{', '.join(type(thing).__name__ for thing in self._things()) or 'no optimizer'}",
            *(
                f"{type(one).__name__} with groups of {[len(g['params']) for g in groups]}"
                for one in self.optimizers
                for groups in [one.param_groups]
            ),
            f"{self._session.world_size} ranks in a replica",
        ]

    def _compare(self, theirs: list[str]) -> None:
        mine = self._what()
        unlike = [(one, other) for one, other in zip(mine, theirs, strict=False) if one != other]
        if len(mine) != len(theirs) or unlike:
            here, there = unlike[0] if unlike else (mine[-1], theirs[-1])
            raise RanksDiverged(UNLIKE.format(self._name, _short(here), _short(there)))


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."
