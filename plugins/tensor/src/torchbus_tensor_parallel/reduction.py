"""How gradients meet: shards over the parts of the data, everything else over all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torchbus.plugin import strategies

from torchbus_tensor_parallel._compat import version
from torchbus_tensor_parallel.ranks import Ranks, is_sharded, own_part


class DividedGradients:
    """Averages gradients, before a step or, by its ``reductions``, in each backward."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def reductions(self, trained: strategies.Trained) -> Reductions:
        """How the gradients of the ``trained`` parameters meet."""
        return Reductions(trained, self._ranks)

    @torch.no_grad()
    def average(self, parameters: Sequence[Tensor], weight: float) -> None:
        """Average gradients that no backward has synchronised. All ranks call it.

        ``weight`` is this rank's weight in the mean. A gradient that no rank has stays None.
        """
        device = own_part(parameters[0]).device
        present = torch.tensor([float(one.grad is not None) for one in parameters], device=device)
        dist.all_reduce(present)
        made = [one for one, ranks in zip(parameters, present.tolist(), strict=True) if ranks]
        for one in made:
            one.grad = settled(one) * weight
        self._ranks.average([one.grad for one in made if one.grad is not None])


class Reductions:
    """One reduction for each set of parameters that require gradients."""

    def __init__(self, trained: strategies.Trained, ranks: Ranks) -> None:
        self._trained = trained
        self._ranks = ranks
        self._made: dict[tuple[int, ...], Reduction] = {}

    def current(self) -> Reduction:
        """The one for the parameters that require gradients now. All ranks call it."""
        parameters = self._trained.requiring_gradients()
        key = tuple(map(id, parameters))
        if key not in self._made:
            buffers = strategies.Buffers(self._trained.models(parameters))
            self._made[key] = Reduction(parameters, buffers, self._ranks)
        return self._made[key]

    def drop(self) -> None:
        """Let go of them: the parameters have changed. All ranks call it."""
        self._made.clear()


class Reduction:
    """Averages every gradient once the graph has run."""

    has_told = True

    def __init__(
        self, parameters: Sequence[Tensor], buffers: strategies.Buffers, ranks: Ranks
    ) -> None:
        self.parameters = list(parameters)
        self.buffers = buffers
        self.header = strategies.make_header(own_part(self.parameters[0]), len(self.parameters))
        self._ranks = ranks
        # of a shard, the ranks of a tensor group have different elements
        self._compared = [one for one in self.parameters if not is_sharded(one)]
        self._uses = 0

    def backward(
        self,
        engine: strategies.Engine,
        roots: strategies.Roots,
        slots: strategies.Slots,
        loss: Tensor | None,
        local: set[int],
        error: BaseException | None = None,
    ) -> None:
        """Run ``engine`` from ``roots``, and leave each gradient's mean. All ranks call it."""
        before = [(one.grad, _version(one.grad)) for one in self.parameters]
        self.header.begin(slots)
        try:
            strategies.run(engine, self.header.parameter, self.header.seed, roots)
            if error is not None:
                raise error
        finally:
            error = None  # its traceback leads here
            self._meet(loss, before, local)

    def synchronised(self) -> set[int]:
        """The ids of the parameters that the last backward has synchronised."""
        return {id(one) for one in self.parameters}

    @torch.no_grad()
    def _meet(
        self, loss: Tensor | None, before: list[tuple[Tensor | None, int]], local: set[int]
    ) -> None:
        present = [
            id(one) in local or one.grad is not old or _version(one.grad) != version_before
            for one, (old, version_before) in zip(self.parameters, before, strict=True)
        ]
        told = self.header.tell(loss, self._sample(), present)
        gradients = [settled(one) for one in self.parameters]
        for one, gradient in zip(self.parameters, gradients, strict=True):
            one.grad = gradient
        self._ranks.average([told, *gradients])
        self._restore_none([old for old, _ in before])

    def _sample(self) -> Tensor:
        """One element of a parameter that all ranks have whole, another one each time."""
        if not self._compared:
            return torch.zeros(())
        sample = own_part(self._compared[self._uses % len(self._compared)].detach())
        self._uses += 1
        return sample[(0,) * sample.dim()]

    def _restore_none(self, before: list[Tensor | None]) -> None:
        """Set a gradient to None again if it was None before and no rank has made it."""
        if not self.header.mean()[strategies.header.WEIGHT]:
            return
        for one, old, reached in zip(self.parameters, before, self.header.reached(), strict=True):
            if old is None and reached < 1e-6:
                one.grad = None


def settled(parameter: Tensor) -> Tensor:
    """Its gradient, placed as the parameter is; zeros if it has none.

    All ranks of a tensor group call it: one that is still a sum over ranks becomes that sum.
    """
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    if not isinstance(gradient, DTensor):
        return gradient.to_dense() if gradient.is_sparse else gradient
    if not isinstance(parameter, DTensor):
        return gradient.full_tensor()
    if gradient.placements == parameter.placements:
        return gradient
    return gradient.redistribute(parameter.device_mesh, parameter.placements)


def _version(gradient: Tensor | None) -> int:
    return 0 if gradient is None else version(gradient)
