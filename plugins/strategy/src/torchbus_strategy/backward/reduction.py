"""The reduction of the gradients of one backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torchbus.compat.torch_names import version

from torchbus_strategy.backward import header
from torchbus_strategy.backward.engine import BackwardFunction, Roots, engine_run
from torchbus_strategy.backward.header import Header, Slots, make_header
from torchbus_strategy.compat import is_sharded, local_part
from torchbus_strategy.parameters.averaging import dense_gradient
from torchbus_strategy.parameters.rank0_values import Buffers
from torchbus_strategy.parameters.trained import TrainedParameters

Average = Callable[[list[Tensor]], None]


class Reduction(Protocol):
    """Averages the gradients of some ``parameters``, and with them the ``header``.

    ``buffers`` are those of the models that own the parameters.
    """

    parameters: list[Tensor]
    header: Header
    buffers: Buffers

    def backward(
        self,
        engine: BackwardFunction,
        roots: Roots,
        slots: Slots,
        loss: Tensor | None,
        local: set[int],
        error: BaseException | None = None,
    ) -> None:
        """Run ``engine`` from ``roots``, and leave each gradient's mean over ranks.

        All ranks call it. Even if the backward fails, the other ranks are not left waiting.

        Args:
            engine: Runs the backward.
            roots: Where the backward starts.
            slots: This rank's metadata.
            loss: The loss, a tensor of one element, or None.
            local: The ids of parameters with gradients that no rank has synchronised yet.
            error: An error that was raised already, on a rank without samples and so without roots.
        """

    @property
    def has_reported(self) -> bool:
        """Whether the ranks exchanged metadata in the last backward, also in a failed one."""

    def synchronised(self) -> set[int]:
        """Return the ids of the parameters that the last backward has synchronised."""


class Reductions(Protocol):
    """One reduction for each set of parameters that require gradients."""

    def current(self) -> Reduction:
        """Return the reduction for the parameters that require gradients now. All ranks call it."""

    def drop(self) -> None:
        """Release all reductions, because the parameters have changed. All ranks call it."""


class AfterBackward:
    """Averages every gradient once the graph has run.

    ``average`` replaces each tensor of a list by its mean over ranks, in place. All ranks call it
    with tensors of the same shapes, dtypes and devices, in the same order. Sparse gradients become
    dense, and those of DTensors are placed as their parameters are.
    """

    has_reported = True

    def __init__(self, parameters: Sequence[Tensor], buffers: Buffers, average: Average) -> None:
        self.parameters = list(parameters)
        self.buffers = buffers
        self.header = make_header(local_part(self.parameters[0]), len(self.parameters))
        self._average = average
        # a shard has different elements on each rank
        self._compared = [one for one in self.parameters if not is_sharded(one)]
        self._uses = 0

    def backward(
        self,
        engine: BackwardFunction,
        roots: Roots,
        slots: Slots,
        loss: Tensor | None,
        local: set[int],
        error: BaseException | None = None,
    ) -> None:
        """See ``Reduction``."""
        before = [(parameter.grad, _version(parameter.grad)) for parameter in self.parameters]
        self.header.begin(slots)
        try:
            engine_run(engine, self.header.parameter, self.header.seed, roots)
            if error is not None:
                raise error
        finally:
            error = None  # its traceback refers to this frame
            self._communicate(loss, before, local)

    def synchronised(self) -> set[int]:
        """See ``Reduction``."""
        return {id(parameter) for parameter in self.parameters}

    @torch.no_grad()
    def _communicate(
        self, loss: Tensor | None, before: list[tuple[Tensor | None, int]], local: set[int]
    ) -> None:
        present = [
            (id(parameter) in local and parameter.grad is not None)
            or _touched(parameter.grad, *old)
            for parameter, old in zip(self.parameters, before, strict=True)
        ]
        reported = self.complete_header(loss, present)
        gradients = [dense_gradient(parameter) for parameter in self.parameters]
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self._average([reported, *gradients])
        self._restore_none([old for old, _ in before])

    def complete_header(self, loss: Tensor | None, present: Sequence[bool]) -> Tensor:
        """Return this rank's metadata, of shape (slots + parameters,): the first averaged tensor.

        ``present`` says which parameters get a gradient here.
        """
        return self.header.complete(loss, self._sample(), present)

    def _sample(self) -> Tensor:
        """Return one element of a parameter that all ranks have whole, of the next one each time.

        If there is none, it returns 0.
        """
        if not self._compared:
            return torch.zeros(())
        sample = local_part(self._compared[self._uses % len(self._compared)].detach())
        self._uses += 1
        return header.first_number(sample)

    def _restore_none(self, before: list[Tensor | None]) -> None:
        """Set a gradient to None again if it was None before and no rank has made it."""
        unreached = self.header.unreached()
        for parameter, old, is_unreached in zip(self.parameters, before, unreached, strict=True):
            if old is None and is_unreached:
                parameter.grad = None


class AllAfterBackward:
    """Makes an ``AfterBackward`` for each set of parameters that require gradients."""

    def __init__(self, trained: TrainedParameters, average: Average) -> None:
        self._trained = trained
        self._average = average
        self._made: dict[tuple[int, ...], AfterBackward] = {}

    def current(self) -> AfterBackward:
        """See ``Reductions``."""
        parameters = self._trained.requiring_gradients()
        key = tuple(map(id, parameters))
        if key not in self._made:
            buffers = self._trained.buffers(self._trained.models(parameters))
            self._made[key] = AfterBackward(parameters, buffers, self._average)
        return self._made[key]

    def drop(self) -> None:
        """See ``Reductions``."""
        self._made.clear()


def _version(gradient: Tensor | None) -> int:
    return 0 if gradient is None else version(gradient)


def _touched(gradient: Tensor | None, before: Tensor | None, version_before: int) -> bool:
    return gradient is not before or _version(gradient) != version_before
