"""The events that torchbus-checkpoint adds: the next epoch of ``s.epochs``, a loop that is cut
short, a checkpoint at the end of a pass, a restore, and gradients that an engine keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torchbus.plugin import hookspec

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from torchbus.plugin import LoaderIterator


@hookspec(firstresult=True)
def end_epochs(epoch: int) -> bool | None:
    """``s.epochs`` is about to begin another epoch. Return True to end the loop.

    ``epoch`` is the number of this epoch, counted from 0.
    """


@hookspec(firstresult=True)
def cut_short() -> Literal["here", "earlier"] | None:
    """Does the loop end before it is over, as after ``max_steps``?

    Fired between two steps, and at the end of the block. All ranks must return the same answer.
    With "here", a checkpoint is written now, and a later run can resume from it. With "earlier",
    steps that the loop called after the cut were skipped, so no run can continue from here.
    """


@hookspec
def last_batch_used(iterator: LoaderIterator) -> None:
    """A checkpoint is about to be written after the last batch of a pass, before ``loader_end``.

    A run that resumes from it gets no batch of this pass, so a listener that reports on whole
    passes reports now. Fired on all ranks, which may use collectives.
    """


@hookspec
def before_restore() -> None:
    """A checkpoint is about to be restored. It has not been compared with the loop yet.

    A listener completes the objects that it is compared with: optimizers get all their groups.
    Fired once per restore, and before ``load_best=True`` restores weights at the end.
    """


@hookspec(firstresult=True)
def whole_gradients(optimizer: Optimizer) -> list[Tensor | None] | None:
    """A checkpoint is written in the middle of a step, and must contain the gradients.

    Answer if an engine stores gradients outside of ``p.grad``, or on some ranks only. The answer
    has the whole, averaged gradient of each parameter, with its shape and dtype, or None, in the
    order of the optimizer's groups. Fired on all ranks, which may use collectives.
    """


@hookspec(firstresult=True)
def put_gradients(optimizer: Optimizer, gradients: list[Tensor | None]) -> bool | None:
    """A checkpoint restores gradients. It has emptied ``p.grad``, and writes there unless the
    answer is True.

    ``gradients`` has the parameters' shapes and dtypes, as in ``whole_gradients``. It is an empty
    list if the checkpoint has no gradients.
    """
