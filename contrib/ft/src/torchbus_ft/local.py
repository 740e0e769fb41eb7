"""Runs torchft's LocalSGD and DiLoCo, in which replicas step independently between averages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torchbus.plugin import Context, Unsupported, hookimpl, mark_internal

from torchbus_ft._compat import LocalAveraging, WithQuorum
from torchbus_ft.replicas import ReplicaLink
from torchbus_strategy.internal import making_internal

ALGORITHMS = ("local_sgd", "diloco")
SECOND = (
    "gradient_algorithm={!r} under strategy='ft' averages the parameters of one optimizer, and {}"
    " is a second one. Give all parameters to one optimizer, or leave gradient_algorithm out"
)
OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
"""DiLoCo's outer optimizer is this SGD, as in the paper (Douillard et al., 2023)."""


class CompletedWork:
    """The handle of a finished collective."""

    def wait(self) -> bool:
        return True


class OfWindow(WithQuorum):
    """torchft's Manager, for a window of steps whose quorum was formed before the first one."""

    def __init__(self, replicas: ReplicaLink, decide: Callable[[], bool]) -> None:
        self._replicas = replicas
        self.should_commit = decide

    def start_quorum(self) -> None:
        """Do nothing: the quorum of the window exists, and has divided the data."""

    def allreduce(self, tensor: Tensor, should_quantize: bool = False) -> CompletedWork:
        self._replicas.mean(tensor)
        return CompletedWork()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replicas.manager, name)


class PeriodicAveraging:
    """Averages the parameters after every ``every`` steps, and at the end of a pass.

    If a replica has left, the parameters return to the last average, and the loop repeats the steps
    since then with the same samples.
    """

    hears_trials = False

    def __init__(
        self,
        session: Context,
        replicas: ReplicaLink,
        algorithm: str,
        every: int,
        decide: Callable[[], bool],
        share_buffers: Callable[[], None],
    ) -> None:
        self._session = session
        self._manager = OfWindow(replicas, decide)
        self._algorithm = algorithm
        self._every = every
        self._share_buffers = share_buffers
        self._averaging: LocalAveraging | None = None
        self._optimizer: Optimizer | None = None
        self._parameters: list[Tensor] = []
        self._before: list[Tensor] = []
        self.steps = 0

    @hookimpl
    def optimizer_ready(self, optimizer: Optimizer) -> None:
        if not self._session.captures(optimizer):
            return
        if self._optimizer is not None and optimizer is not self._optimizer:
            raise Unsupported(SECOND.format(self._algorithm, type(optimizer).__name__))
        self._optimizer = optimizer
        self._parameters = [one for group in optimizer.param_groups for one in group["params"]]
        model = mark_internal(nn.ParameterList(self._parameters))
        with making_internal():
            outer = SGD(model.parameters(), **OUTER)  # type: ignore[arg-type]
        given = (self._manager, model, optimizer, outer, self._every)
        self._averaging = LocalAveraging(self._algorithm, *given)

    def begin(self) -> None:
        """Begin a window after a quorum: copy the parameters, which are equal on all replicas."""
        self._before = [one.detach().clone() for one in self._parameters]
        self.steps = 0

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        if optimizer is self._optimizer:
            self.steps += 1
            if self.steps == self._every:
                self.average()

    def average(self) -> None:
        """Average the parameters now, and share the buffers of the first replica.

        All ranks of all replicas call it after the same step.
        """
        if self.steps and self._averaging is not None:
            self.steps = 0
            self._share_buffers()
            self._averaging.run()

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the parameters from the beginning of the window."""
        for one, before in zip(self._parameters, self._before, strict=True):
            one.data.copy_(before)
