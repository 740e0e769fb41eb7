"""What a checkpoint keeps of the replicas: common steps, and places in the order of the data."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader
from torchbus.plugin import LoaderIterator, hookimpl

from torchbus_ft.passes import Passes, Places
from torchbus_ft.replicas import Replicas

State = dict[str, Any]


class Resumed:
    """Brings a run that resumes to where it stood, whatever replicas shared the data then.

    A checkpoint counts the batches of one rank. How much of the order they were depends on the
    replicas of each step.
    """

    hears_trials = False

    def __init__(self, replicas: Replicas, passes: Passes) -> None:
        self._replicas = replicas
        self._passes = passes
        self._begun: int | None = None
        self._places: Places = {}

    def state_dict(self) -> State:
        return {
            "steps": self._replicas.manager.state_dict(),
            "begun": self._passes.begun,
            "places": [[n, place] for n, place in self._passes.state().items()],
        }

    def load_state_dict(self, state: State) -> None:
        self._replicas.manager.load_state_dict(state["steps"])
        self._begun = state["begun"]
        self._places = dict(state["places"])

    @hookimpl
    def batch_wanted(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        """The first one after the checkpoint: in the pass that it was written in, or the next."""
        if self._begun is None:
            return
        in_that_pass = iterator.taken > 0
        number = self._begun if in_that_pass else max(self._passes.begun, self._begun + 1)
        self._passes.go_on(number, self._places if in_that_pass else {})
        self._begun = None
