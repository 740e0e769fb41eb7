"""Counts epochs, and detects when the loop is between two steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus.plugin import Context, LoaderIterator, hookimpl
from torchbus.runtime.steps import StepCounter

from torchbus_checkpoint.loop.contents import parameters
from torchbus_checkpoint.loop.position import LoopPosition
from torchbus_checkpoint.loop.replaying import LoopReplay

LEFT = -1  # the end of a loop that was left by break


class Epochs:
    """Runs the loops over ``s.epochs``, numbered in the order in which the script begins them.

    Calls ``boundary`` before each epoch, and after the last.
    """

    def __init__(
        self,
        session: Context,
        position: LoopPosition,
        steps: LoopSteps,
        boundary: Callable[[], None],
    ) -> None:
        self._session = session
        self._position = position
        self._steps = steps
        self._boundary = boundary
        self._begun = 0
        self._ends: dict[int, int | None] = {}
        self.replay: LoopReplay | None = None

    def state(self) -> list[tuple[int, int | None]]:
        """Return the loops that have begun, with the epoch at which each ended, or ``LEFT``."""
        return list(self._ends.items())

    def load(self, state: Iterable[tuple[int, int | None]]) -> None:
        """Restore a ``state``. The loop that runs now has no end, also if it had one there."""
        number, _ = self._position.section
        self._ends = dict(state) | ({number: LEFT} if number % 2 else {})

    def run(self, count: int) -> Iterator[int]:
        """Run the epochs of the next loop."""
        self._begun += 1
        return self._run(2 * self._begun - 1, count)

    def _run(self, number: int, count: int) -> Iterator[int]:
        self._steps.counts_passes = False
        replay = self.replay if self.replay is not None and self.replay.pending else None
        epoch = 0 if replay is None else replay.first_epoch(number, count)
        self._ends[number] = LEFT
        try:
            while epoch < count and not self._is_ended(epoch):
                self._enter((number, epoch))
                if replay is not None and self._is_ended(epoch):  # the restored state says so
                    break
                yield epoch
                epoch += 1
                self._steps.epoch_ended()
            if epoch < count and self._session.bus.hook.cut_short():
                self._enter((number, epoch))  # where a run with more epochs continues
        except GeneratorExit:  # the loop was left by break
            self._position.enter((number + 1, 0))
            raise
        self._ends[number] = epoch  # where a run with more epochs or more patience continues
        self._enter((number + 1, 0))

    def _is_ended(self, epoch: int) -> bool:
        return bool(self._session.bus.hook.end_epochs(epoch=epoch))

    def _enter(self, section: tuple[int, int]) -> None:
        self._position.enter(section)
        if self.replay is not None and self.replay.pending:
            self.replay.enter(section)
        self._boundary()


class LoopSteps:
    """Detects when a step of the loop is over: between two requests for a batch.

    Several optimizers may step in it, and the loop may read several loaders. The first loader that
    the loop asks for a batch is the head. When the loop asks the head again, the step is over, and
    this object calls ``at_boundary(iterator)``.

    ``epochs`` is the number of passes over the head, or of epochs of ``s.epochs`` (then
    ``counts_passes`` is False). ``since_save`` is True if the loop has made a step since the last
    checkpoint. ``judged`` is True if the monitored value was reported after the last step, so that
    it is the value of the present weights. ``owes_value`` is True if the last checkpoint was
    written without a value. ``lost_value`` is True if a later value came for newer weights, but
    more steps followed before the loop was between two steps. ``evaluated`` is True if the loop has
    read a batch without gradients after the last step. ``loaded`` is True between ``s.load`` and
    the next step: the weights are those of a checkpoint that must not change.
    """

    hears_trials = False

    def __init__(self, made: StepCounter, at_boundary: Callable[[LoaderIterator], None]) -> None:
        self._made = made
        self._at_boundary = at_boundary
        self._clean: set[int] = set()
        self._has_run_backward = False
        self._keeps: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._asked: list[weakref.ref[DataLoader[object]]] = []
        self._head: weakref.ref[DataLoader[object]] | None = None
        self._stepped = self._pass_ended = False
        self.epochs = 0
        self.counts_passes = True
        self.since_save = False
        self.judged = self.owes_value = self.lost_value = False
        self.evaluated = self.loaded = False

    @property
    def count(self) -> int:
        """Optimizer steps of the loop, over all runs."""
        return self._made.count

    def put(self, epochs: int, judged: bool) -> None:
        """Continue counting from a checkpoint. If ``judged``, it has a value of its weights."""
        self.epochs, self.judged = epochs, judged
        self.saved()

    def saved(self) -> None:
        """Called when there is a checkpoint of the present weights."""
        self.since_save = self.lost_value = False
        self.owes_value = not self.judged

    def epoch_ended(self) -> None:
        """Called when ``s.epochs`` has ended an epoch."""
        self.epochs += 1

    def has_gradients(self, optimizer: Optimizer) -> bool:
        """Whether the next step may need the present gradients.

        It does if a backward came after the last step, or if the loop does not clear the gradients.
        """
        return id(optimizer) not in self._clean or self._keeps.get(optimizer, True)

    def is_in_window(self, optimizer: Optimizer) -> bool:
        """Whether a backward came after the optimizer's last step."""
        return self._has_run_backward and id(optimizer) not in self._clean

    @hookimpl
    def before_backward(self) -> None:
        for optimizer in self._made.optimizers():
            if optimizer not in self._keeps and id(optimizer) in self._clean:
                # all ranks must agree, so the values of a rank's part do not matter
                grads = [parameter.grad for parameter in parameters(optimizer)]
                self._keeps[optimizer] = any(grad is not None for grad in grads)

    @hookimpl
    def after_backward(self) -> None:
        self._clean.clear()
        self._has_run_backward = True

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        self._clean.add(id(optimizer))
        self.lost_value |= self.judged and self.owes_value and self.since_save
        self.judged = self.evaluated = self.loaded = False
        self._stepped = self.since_save = True
        if self._asked and (
            self._head is None or self._head() is None or self._head not in self._asked
        ):
            self._head = next((known for known in self._asked if known() is not None), None)

    @hookimpl
    def batch_wanted(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        if not torch.is_grad_enabled():
            self.evaluated = True
            return
        reference = weakref.ref(loader)
        if self._pass_ended and self._head is not None and self._head() is None:
            self._head = reference  # the loop makes a new loader for each pass
        if (self._stepped or self._pass_ended) and reference == self._head:
            self._stepped = self._pass_ended = False
            self._asked = []
            self._at_boundary(iterator)
        if reference not in self._asked:
            self._asked.append(reference)

    @hookimpl
    def loader_end(self, loader: DataLoader[object]) -> None:
        if weakref.ref(loader) == self._head:
            self._pass_ended = True
            self.epochs += self.counts_passes
