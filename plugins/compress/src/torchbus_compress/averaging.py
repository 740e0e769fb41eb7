"""Algorithms that average models instead of gradients.

Between two averages, each rank steps independently, with local gradients and optimizer state.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypedDict, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from torchbus_compress.codecs import Bytes, Codec

State = dict[str, Any]
"""The state of an averager: numbers and tensors by name."""


class Averager:
    """Averages the parameters of one optimizer, after its steps. All ranks call each method."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self._parameters = parameters

    def begin(self) -> None:
        """Prepare before the first average. All ranks call it."""

    @abstractmethod
    def after_step(self) -> None:
        """Average, or start to, if this step is due. All ranks call it after each step."""

    def finish(self) -> None:
        """Wait for collectives that still run, and apply their results."""

    def agree(self) -> None:
        """Give all ranks the mean of all models, in one all-reduce. All ranks call it."""
        self.finish()
        flat = self.read() / dist.get_world_size()
        dist.all_reduce(flat)
        self.write(flat)

    def state(self) -> State:
        """Return this rank's state, for a checkpoint."""
        return {}

    def restore(self, saved: State) -> None:
        """Load what ``state`` has returned, instead of ``begin``."""

    def read(self) -> Tensor:
        """Return all parameters in a new vector, of shape (elements,)."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])

    @torch.no_grad()
    def write(self, flat: Tensor) -> None:
        for parameter, part in zip(
            self._parameters, flat.split([one.numel() for one in self._parameters]), strict=True
        ):
            parameter.copy_(part.view_as(parameter))


class LocalSgd(Averager):
    """Averages all models every ``period_steps`` steps, by torch's PeriodicModelAverager.

    During the first ``warmup_steps`` steps, it averages after each step.

    Source: Lin et al., Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020.
    """

    def __init__(
        self, parameters: list[Tensor], period_steps: int = 4, warmup_steps: int = 8
    ) -> None:
        super().__init__(parameters)
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

        self._warmup_steps, self._steps = warmup_steps, 0
        self._averager = PeriodicModelAverager(period=period_steps, warmup_steps=warmup_steps)

    def after_step(self) -> None:
        self._steps += 1
        if self._steps <= self._warmup_steps:
            self.agree()
        self._averager.average_parameters(cast("list[nn.Parameter]", self._parameters))

    def state(self) -> State:
        return {"steps": self._steps, "of_torch": self._averager.step}

    def restore(self, saved: State) -> None:
        self._steps, self._averager.step = saved["steps"], saved["of_torch"]


class Ring(Averager):
    """Replaces each rank's model by the mean of this model and its neighbours' in a ring.

    Source: Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NeurIPS
    2017.
    """

    def after_step(self) -> None:
        mine = self.read()
        others = exchange(mine)
        self.write((mine + sum(others)) / (1 + len(others)))


class CodedRing(Averager):
    """Like ``Ring``, but ranks send the change of their model, in one byte per number.

    Each rank stores a copy of its neighbours' models.

    Source: Tang et al., Communication Compression for Decentralized Training, NeurIPS 2018
    (DCD-PSGD).
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__(parameters)
        self._codec: Codec = Bytes()
        self._mine = self.read()
        self._others: list[Tensor] = []

    def begin(self) -> None:
        self.agree()

    def after_step(self) -> None:
        mean = (self._mine + sum(self._others)) / (1 + len(self._others))
        change = self._codec.encode((self.read() + mean - 2 * self._mine)[None])
        for other, theirs in zip(self._others, exchange(change), strict=True):
            other += self._codec.decode(theirs, other.dtype)[0]
        self._mine += self._codec.decode(change, self._mine.dtype)[0]
        self.write(self._mine)

    def agree(self) -> None:
        super().agree()
        self._mine = self.read()
        self._others = [self._mine.clone() for _ in ring_peers()]

    def state(self) -> State:
        return {"mine": self._mine, "others": self._others}

    def restore(self, saved: State) -> None:
        self._mine, *self._others = (
            one.to(self._mine.device, copy=True) for one in (saved["mine"], *saved["others"])
        )


class AsyncAverage(Averager):
    """Averages all models while the next ``period_steps`` steps run, and then corrects the model.

    Source: asynchronous model average of Gan et al., BAGUA, VLDB 2022. Here it starts at fixed
    steps, so that all ranks average the same step.
    """

    def __init__(self, parameters: list[Tensor], period_steps: int = 4) -> None:
        super().__init__(parameters)
        self._period_steps, self._steps = period_steps, 0
        self._pending: tuple[dist.Work | None, Tensor, Tensor] | None = None

    def after_step(self) -> None:
        self._steps += 1
        if self._steps % self._period_steps == 0:
            self.finish()
            before = self.read()
            mean = before / dist.get_world_size()
            self._pending = dist.all_reduce(mean, async_op=True), before, mean

    def finish(self) -> None:
        if self._pending is not None:
            (work, before, mean), self._pending = self._pending, None
            if work is not None:
                work.wait()
            self.write(self.read() + mean - before)

    def state(self) -> State:
        if self._pending is None:
            return {"steps": self._steps}
        work, before, mean = self._pending
        if work is not None:
            work.wait()
        self._pending = None, before, mean
        return {"steps": self._steps, "before": before, "mean": mean}

    def restore(self, saved: State) -> None:
        self._steps = saved["steps"]
        if "mean" in saved:
            before, mean = (
                saved[name].to(self._parameters[0].device) for name in ("before", "mean")
            )
            self._pending = None, before, mean


def ring_peers() -> list[int]:
    """Return the ranks before and after this one in the ring. Of two ranks, each has only one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return list(dict.fromkeys([(rank - 1) % ranks, (rank + 1) % ranks]))


def exchange(mine: Tensor) -> list[Tensor]:
    """Send a tensor to each neighbour, and return theirs, of the same shape and dtype.

    All ranks call it.
    """
    received = [torch.empty_like(mine) for _ in ring_peers()]
    works = [dist.isend(mine, peer) for peer in ring_peers()]
    works += [dist.irecv(tensor, peer) for tensor, peer in zip(received, ring_peers(), strict=True)]
    for work in works:
        if work is not None:
            work.wait()
    return received


AVERAGERS: dict[str, Callable[[list[Tensor]], Averager]] = {
    "local_sgd": LocalSgd,
    "decentralized": Ring,
    "low_precision_decentralized": CodedRing,
    "async": AsyncAverage,
}


class LocalModel(TypedDict):
    """This rank's parameters, state and averager of one optimizer."""

    parameters: list[Tensor]
    state: dict[str, Any]
    averager: State | None


class SavedModel(TypedDict):
    stepped: bool
    optimizers: list[LocalModel]


class LocalModels:
    """The averager of each optimizer, and this rank's model between two averages.

    A checkpoint has the optimizers in the order in which they were made.
    """

    def __init__(self, make: Callable[[list[Tensor]], Averager]) -> None:
        self._make = make
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._averagers: dict[Optimizer, Averager] = {}
        self.stepped = False

    def add(self, optimizer: Optimizer) -> None:
        if not any(known() is optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def close(self) -> None:
        self._averagers.clear()

    def after_step(self, optimizer: Optimizer) -> None:
        """Average the optimizer's parameters. All ranks call it."""
        self.add(optimizer)
        if optimizer not in self._averagers:
            self._averagers[optimizer] = self._make(_parameters(optimizer))
            self._averagers[optimizer].begin()
        self._averagers[optimizer].after_step()
        self.stepped = True

    def agree(self) -> None:
        """Give all ranks the mean of their models, after further steps. All ranks call it."""
        if self.stepped:
            self.stepped = False
            for averager in self._averagers.values():
                averager.agree()

    def state_dict(self) -> SavedModel:
        return {
            "stepped": self.stepped,
            "optimizers": [self._of(optimizer) for optimizer in self._alive()],
        }

    def _of(self, optimizer: Optimizer) -> LocalModel:
        averager = self._averagers.get(optimizer)
        parameters = [parameter.detach() for parameter in _parameters(optimizer)]
        return {
            "parameters": parameters,
            "state": optimizer.state_dict(),
            "averager": None if averager is None else averager.state(),
        }

    @torch.no_grad()
    def load_state_dict(self, saved: SavedModel) -> None:
        """Load a state that this rank has written."""
        self.stepped = saved["stepped"]
        self._averagers.clear()
        for optimizer, mine in zip(self._alive(), saved["optimizers"], strict=True):
            for parameter, value in zip(_parameters(optimizer), mine["parameters"], strict=True):
                parameter.copy_(value)
            optimizer.load_state_dict(mine["state"])
            if mine["averager"] is not None:
                averager = self._averagers[optimizer] = self._make(_parameters(optimizer))
                averager.restore(mine["averager"])

    def _alive(self) -> list[Optimizer]:
        return [one for known in self._optimizers if (one := known()) is not None]


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
