"""The gradients of all ranks, made on rank 0 from what the ranks have told."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from torchbus_verify.compare.difference import apart
from torchbus_verify.watch import again
from torchbus_verify.watch.calls import Calls
from torchbus_verify.watch.findings import Gradients, Judgement


@dataclass
class Told:
    """What a rank tells. ``calls``: pickled, or why they can't be made again. ``norms``: of its own
    gradients.
    """

    weight: float
    terms: int
    norms: dict[str, float]
    calls: bytes | str


class MadeAgain:
    """``whole``: the sum over ranks. ``cannot``: why it was not made; "" if it was."""

    def __init__(self, told: list[Told], own: Gradients, held: Gradients, calls: Calls) -> None:
        self.whole: Gradients = {}
        self.cannot = next((one.calls for one in told if isinstance(one.calls, str)), "")
        self._told, self._own = told, own
        self._first: Gradients = {}
        self._norms: list[dict[str, float]] = []
        if self.cannot:
            return
        try:
            self._make(calls, {id(one): name for name, one in held.items()})
        except Exception as error:  # a forward may do anything; the loop must go on
            self.cannot = f"{type(error).__name__}: {error}"

    def _make(self, calls: Calls, names: dict[int, str]) -> None:
        for rank, told in enumerate(self._told):
            assert isinstance(told.calls, bytes)
            made = again.gradients(pickle.loads(told.calls), calls.modules, names)
            if not rank:
                self._first = dict(made)
            self._norms.append({name: float(one.double().norm()) for name, one in made.items()})
            for name, one in made.items():
                self.whole[name] = self.whole[name] + one if name in self.whole else one

    def reproduces(self, name: str, judgement: Judgement) -> bool:
        """Whether rank 0 can make its own gradient again: that of a parameter that the loss
        reaches outside of forward, it can't.
        """
        if name not in self._first or name not in self._own:
            return False
        gap = apart(self._first[name].flatten(), self._own[name].flatten(), judgement.floor)
        return gap <= judgement.allowed

    def odd_rank(self, name: str, allowed: float) -> int | None:
        """The rank whose own gradient is not the one that rank 0 makes of its inputs."""
        for rank, (told, made) in enumerate(zip(self._told, self._norms, strict=True)):
            theirs, ours = told.norms.get(name, 0.0), made.get(name, 0.0)
            if not abs(theirs - ours) <= allowed * max(theirs, ours):
                return rank
        return None
