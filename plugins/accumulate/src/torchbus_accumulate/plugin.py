"""The plugin for gradient accumulation: its option, ``s.no_sync`` and the other verbs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import BackwardCall, Context, UsageError, hookimpl

from torchbus_accumulate import position
from torchbus_accumulate.position import BatchUse, last_by_torch
from torchbus_accumulate.windows.owner import Windows
from torchbus_accumulate.windows.sums import parameters_of
from torchbus_strategy.loss.terms import Count


class Accumulate:
    """Makes one real step for several batches of an unchanged loop.

    Args:
        accumulate_grad_batches: the number of batches per real step, or a dict that gives this
            number from an epoch on, as in ``{0: 8, 4: 4}``.

    Adds ``s.toggle``, ``s.no_sync``, ``s.accumulating``, ``s.is_last_batch`` and
    ``s.backward_weight``.
    """

    owns = ("accumulation",)
    verbs = ("toggle", "no_sync", "accumulating", "is_last_batch", "backward_weight")
    tried_with = ({"accumulate_grad_batches": 2},)

    def __init__(self, accumulate_grad_batches: int | Mapping[int, int] = 1) -> None:
        self.schedule = position.parse(accumulate_grad_batches)
        self._session: Context | None = None
        self._toggle = Toggle()
        self._optimizers: weakref.WeakSet[Optimizer] | None = None  # since the first toggle
        self._place: BatchUse | None = None
        self._local = 0
        self._weight: float | None = None
        self._windows: Windows | None = None

    @property
    def grad_batches(self) -> int:
        """Batches per step in the first epoch."""
        return self.schedule[0]

    @property
    def window_is_open(self) -> bool:
        """Whether a window has begun but not ended, or the loop is inside ``no_sync``."""
        return self._local > 0 or (self._windows is not None and self._windows.has_begun_one)

    # Events --------------------------------------------------------------------------------------

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session
        self._place = BatchUse(session)
        windows = set(self.schedule.values()) != {1}
        session.batches.follow("accumulation windows" if windows else "")
        if windows:
            self._windows = Windows(session, self.schedule, self._place)
            session.bus.register(self._windows, "accumulate.windows")
            session.bus.register(self._windows.local_sums, "accumulate.own")

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if self._optimizers is not None and optimizer is not None:
            self._optimizers.add(optimizer)

    @hookimpl(tryfirst=True)
    def before_backward(self, call: BackwardCall) -> None:
        if self._local:
            call.sync = False
        weight, self._weight = self._weight, None
        if self._windows is not None:
            self._windows.weigh(call, weight)
        elif weight is not None and call.sync:
            self._weigh(call, weight)

    def _weigh(self, call: BackwardCall, count: float) -> None:
        session = self._session
        if session is None:
            return
        if session.world.divides_anew:  # replicas exchange counts together with their gradients
            call.count = Count(count if session.share.weight else 0.0, counted=True)
            call.count.isolated = True
        elif session.world_size > 1:
            mine = count if session.share.weight else 0.0
            everywhere = float(session.reduce(mine, "sum"))
            call.weight = mine * session.world_size / everywhere if everywhere else 0.0

    # Verbs ---------------------------------------------------------------------------------------

    @property
    def is_last_batch(self) -> bool:
        """Whether the present batch is the last one of this pass over its loader. Any rank may ask.

        Raises UsageError if no loader is being iterated, or if it has no length.
        """
        if self._place is None or self._place.at_hand is None:
            return last_by_torch()
        return self._place.ends_pass()

    def no_sync(self) -> AbstractContextManager[None]:
        """Backwards inside do not communicate. All ranks must enter it.

        The next backward outside, or ``optimizer.step``, averages the accumulated gradients.

        Source: ``no_sync`` of torch's DistributedDataParallel.
        """
        return self.accumulating(True)

    def accumulating(self, more_to_come: bool = True) -> AbstractContextManager[None]:
        """For a loop that accumulates gradients itself: ``with s.accumulating((i + 1) % 4 != 0):``.

        This is ``no_sync()`` if there is ``more_to_come``: for all batches but the last one of each
        window. All ranks must enter it.
        """
        return self._without_sync() if more_to_come else nullcontext()

    @contextmanager
    def _without_sync(self) -> Iterator[None]:
        self._local += 1
        try:
            yield
        finally:
            self._local -= 1

    @contextmanager
    def toggle(self, optimizer: Optimizer, sync_grad: bool = True) -> Iterator[None]:
        """Inside, the parameters of all other optimizers require no gradients.

        With ``sync_grad=False``, backwards do not communicate either, and all ranks must enter it.
        At the end, each parameter's ``requires_grad`` is restored. Raises UsageError for an
        optimizer that the session does not know.
        """
        if self._optimizers is None or optimizer not in self._optimizers:
            self._optimizers = weakref.WeakSet(objects.optimizers())
        known = [
            other
            for other in self._optimizers
            if self._session is None or self._session.captures(other)
        ]
        if not any(optimizer is other for other in known):
            raise UsageError(
                f"toggle({type(optimizer).__name__}): the session has not seen this optimizer; pass"
                " a torch optimizer, and with capture=False give it to s.adopt(...) first"
            )
        with self._toggle.block(optimizer, known), self.accumulating(not sync_grad):
            yield

    def backward_weight(self, count: float) -> None:
        """Say that the next loss is a mean over ``count`` things (tokens) on this rank.

        ``count`` is a number or a tensor with one element, 0 or more. It weights the gradients over
        ranks and over the batches of a window. All ranks must call this. Raises UsageError for
        another value.
        """
        if (
            isinstance(count, bool)
            or not isinstance(count, int | float | torch.Tensor)
            or not float(count) >= 0
        ):
            raise UsageError(
                f"backward_weight({count!r}): pass the number of tokens (or other things) behind"
                " the loss, 0 or more"
            )
        self._weight = float(count)

    # State ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, object]:
        """Return where the loop is in its window, and each optimizer's part of an open window.

        The optimizers are in the order of their creation. The state has plain numbers and tensors,
        and is the same on all ranks. All ranks must call this, after a step.

        Raises:
            Unsupported: between ``backward`` and ``optimizer.step`` in the middle of a window.
        """
        return {} if self._windows is None else self._windows.saved()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue with the next batch of the epoch and of the window.

        All ranks must call this, inside the block, after the optimizers have been created. The
        number of ranks may have changed.

        Raises:
            UsageError: if the optimizers are not those of the checkpoint.
        """
        if self._windows is not None and state:
            self._windows.put_back(state)

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]] | None:
        return None if self._windows is None else {"accumulate": self._windows.lines()}


class Toggle:
    """Remembers ``requires_grad`` of each parameter before the outermost block. Blocks may nest."""

    def __init__(self) -> None:
        self._before: dict[int, bool] = {}

    @contextmanager
    def block(self, optimizer: Optimizer, all_optimizers: Iterable[Optimizer]) -> Iterator[None]:
        """Freeze the parameters of all other optimizers inside the block."""
        everything = {
            id(parameter): parameter
            for other in all_optimizers
            for parameter in parameters_of(other)
        }
        entry = {key: parameter.requires_grad for key, parameter in everything.items()}
        first = [key for key in entry if key not in self._before]
        self._before.update((key, entry[key]) for key in first)
        mine = {id(parameter) for parameter in parameters_of(optimizer)}
        try:
            for key, parameter in everything.items():
                parameter.requires_grad_(self._before[key] and key in mine)
            yield
        finally:
            for key, parameter in everything.items():
                parameter.requires_grad_(entry[key])
            for key in first:
                del self._before[key]
