"""Warns if ranks see the same data or repeat the same work."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Module
from torchbus import objects
from torchbus.plugin import Context, LoaderIterator, Origin, hookimpl, warn

from torchbus_strategy.backward import header
from torchbus_strategy.checks.divergence import HeaderWatch
from torchbus_strategy.compat import DATA_ITERATOR
from torchbus_strategy.user_code import warn_of_gradients

LOOKS = 5


class ReplicaWatch:
    """Warns once if all ranks had the same losses in the first steps: then nothing was divided.

    Inputs are compared too, because dropout makes the losses differ. Inputs that equal those of the
    previous step do not count, as in episodes that begin in the same state.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._looks = 0
        self._equal = 0
        self.input_sum = 0.0
        self._has_input = False
        self._input = 0.0  # the input_sum of the step before
        self._rows = 0  # rows of a forward's first input
        self._pass: Origin | None = None  # the latest pass that may train

    @hookimpl
    def module_called(self, module: Module, inputs: tuple[object, ...]) -> None:
        """Look at the first call after a backward: it gets the batch."""
        if self._has_input:
            return
        tensors = [value.detach() for value in inputs if isinstance(value, Tensor)]
        if tensors:
            self._has_input = True
            self.input_sum = sum(map(weighted_sum, tensors))
            self._rows = max([self._rows, *(len(tensor) for tensor in tensors[:1] if tensor.dim())])

    @hookimpl
    def loader_opened(self, iterator: LoaderIterator) -> None:
        if iterator.origin.trains and not iterator.origin.evaluates:
            self._pass = iterator.origin

    def look(self, mean: Sequence[float], sent: Sequence[float]) -> None:
        """Compare what this rank has sent with the mean over ranks, in the first steps."""
        if self._looks >= LOOKS:
            return
        self._looks += 1
        self.input_sum, self._has_input = 0.0, False
        is_new, self._input = sent[header.INPUT] != self._input, sent[header.INPUT]
        self._equal += _equal(mean[header.RAW_LOSS], sent[header.RAW_LOSS]) or (
            is_new and _equal(mean[header.INPUT], sent[header.INPUT])
        )
        if self._session.share.indices:
            self._looks = LOOKS
        elif self._looks == self._equal == LOOKS and self._session.is_main:
            warn_of_gradients(self._message())
        if self._looks == LOOKS:
            self._session.seams.retire("module_called")

    def _message(self) -> str:
        same = (
            f"all {self._session.world_size} ranks computed the same thing: their inputs or losses"
            f" were equal in the first {LOOKS} steps. "
        )
        if self._pass is not None and self._pass.share is None:
            return f"{same}This pass is not divided: {self._pass.name}. s.explain() says why"
        if _an_iterator_is_older():
            return (
                same
                + "An iterator of a DataLoader was made before the block: make it inside, where the"
                " session sees it"
            )
        shard, dp = (
            ("torchbus.current().shard(...)", "--strategy dp")
            if self._session.under_command
            else ("s.shard(...)", "strategy='dp'")
        )
        ways = (
            f"The script makes its batches itself: divide them with {shard}, or draw them from"
            " per-rank random numbers"
        )
        divides = f"; {dp} divides each batch in the model's forward, with no change of the script"
        return same + ways + (divides if self._rows >= self._session.world_size else "")


def _an_iterator_is_older() -> bool:
    """Whether there is an iterator of torch that the session has not seen from its first batch."""
    seen = objects.alive(LoaderIterator)
    return any(
        not any(one.wraps(iterator) for one in seen) for iterator in objects.alive(DATA_ITERATOR)
    )


def weighted_sum(values: Tensor) -> float:
    """The mean of the values, weighted by their positions: one-hot rows have equal plain sums.

    Returns 0.0 for tensors whose values are not in rows (sparse, nested) or can't be read (meta,
    inside vmap): a check must not stop the loop.
    """
    if values.is_complex() or values.is_nested or values.layout != torch.strided:
        return 0.0
    try:
        flat = values.reshape(-1).double()
        return (
            float((flat * torch.arange(1, flat.numel() + 1, device=flat.device)).mean())
            if flat.numel()
            else 0.0
        )
    except (RuntimeError, NotImplementedError):
        return 0.0


def _equal(mean: float, local: float) -> bool:
    return bool(local) and abs(mean - local) <= 3e-7 * abs(local)  # a difference that float32 shows


AS_MUCH_AS_TRAINING = 3  # a forward and its backward cost three forwards
SUMMED = 8  # inputs that are compared
REPEATED = (
    "all {} ranks made the same {} forward calls under no_grad before the first backward, and {}"
    " for training: every rank repeats the same work (generation, rollouts), which saves no time."
    " Give each rank its part: for prompt in s.shard(prompts)"
)


def watch_replicas(session: Context) -> HeaderWatch:
    """Register the checks for ranks that repeat each other's work. Return the one for headers."""
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
        self._calls_before = (0, 0)

    @hookimpl
    def loader_opened(self, iterator: LoaderIterator) -> None:
        if iterator.origin.evaluates or not iterator.origin.trains:
            self._evaluation = iterator.origin

    @hookimpl
    def batches_skipped(self) -> None:
        """A resumed run generates again what follows its finished epochs."""
        self._session.bus.unregister(self)

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
        if self._backwards > 2:
            self._session.bus.unregister(self)
            return
        if self._without <= AS_MUCH_AS_TRAINING * self._with or not self._inputs:
            return
        if self._backwards == 1:
            self._session.world.shared.set(f"repeated/{self._session.rank}", repr(self._inputs))
        elif self._session.is_main and self._all_alike():
            warn(
                REPEATED.format(
                    self._session.world_size, self._calls_before[0], self._calls_before[1]
                )
            )
        self._calls_before = (self._without, self._with)

    def _all_alike(self) -> bool:
        keys = [f"repeated/{rank}" for rank in range(self._session.world_size)]
        reported = self._session.world.shared.read_all(keys)
        return reported is not None and len(set(reported)) == 1
