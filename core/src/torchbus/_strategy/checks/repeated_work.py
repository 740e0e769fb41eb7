"""Work without gradients that all ranks repeat before the first backward.

Examples are generation and rollouts.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module

from torchbus._batches.taken import Origin
from torchbus._bus.markers import hookimpl
from torchbus._seams.loader import LoaderIterator
from torchbus._session.context import Context
from torchbus._session.notices import warn
from torchbus._strategy.checks.divergence import Watch
from torchbus._strategy.checks.replicas import ReplicaWatch, weighted_sum

AS_MUCH_AS_TRAINING = 3  # a forward and its backward cost three forwards
SUMMED = 8  # inputs that are compared
REPEATED = (
    "all {} ranks made the same {} forward calls under no_grad before the first backward, and {}"
    " for training: work that every rank repeats (generation, rollouts) takes as long as on one."
    " Give each rank its part: for prompt in s.shard(prompts)"
)


def watch_replicas(session: Context) -> Watch:
    """Register the checks for ranks that repeat each other's work, and return that of headers."""
    watch = ReplicaWatch(session)
    session.bus.register(watch, "ddp.replicas")
    session.bus.register(RepeatedWork(session), "ddp.repeated")
    return watch


class RepeatedWork:
    """Counts modules' calls in training mode until the first backward.

    Calls that evaluate a loader do not count. At the first backward each rank puts its inputs into
    the store. At the second, when all have done so, rank 0 compares them.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._without, self._with = 0, 0
        self._inputs: list[float] = []
        self._evaluation: Origin | None = None
        self._backwards = 0
        self._told = (0, 0)

    @hookimpl
    def loader_opened(self, iterator: LoaderIterator) -> None:
        if iterator.origin.evaluates or not iterator.origin.trains:
            self._evaluation = iterator.origin

    @hookimpl
    def module_called(self, module: Module, inputs: tuple[object, ...]) -> None:
        if torch.is_grad_enabled():
            self._with += 1
        elif (
            module.training
            and (self._evaluation is None or self._evaluation.is_over)
            and not self._session.batches.count
        ):
            self._without += 1
            if len(self._inputs) < SUMMED:
                self._inputs.append(
                    sum(
                        weighted_sum(value.detach())
                        for value in inputs
                        if isinstance(value, Tensor)
                    )
                )

    @hookimpl
    def after_backward(self) -> None:
        self._backwards += 1
        if (
            self._backwards > 2
            or self._without <= AS_MUCH_AS_TRAINING * self._with
            or not self._inputs
        ):
            return
        if self._backwards == 1:
            self._session.world.shared.set(f"repeated/{self._session.rank}", repr(self._inputs))
        elif self._session.is_main and self._all_alike():
            warn(REPEATED.format(self._session.world_size, self._told[0], self._told[1]))
        self._told = (self._without, self._with)

    def _all_alike(self) -> bool:
        keys = [f"repeated/{rank}" for rank in range(self._session.world_size)]
        told = self._session.world.shared.read_all(keys)
        return told is not None and len(set(told)) == 1
