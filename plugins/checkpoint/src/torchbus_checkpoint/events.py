"""The events that torchbus-checkpoint adds: the next epoch of ``s.epochs``, a loop that is cut
short, a restore, and gradients that an engine keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torchbus.plugin import hookspec

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


@hookspec(firstresult=True)
def end_epochs(epoch: int) -> bool | None:
    """``s.epochs`` is about to begin another epoch. True: the loop is over.

    ``epoch``: its number, from 0.
    """


@hookspec(firstresult=True)
def cut_short() -> Literal["here", "earlier"] | None:
    """Does the loop end before it is over, as after ``max_steps``?

    Fired between two steps, and at the end of the block. All ranks return the same. "here": a
    checkpoint is written now, and a later run resumes from it. "earlier": steps that the loop has
    called since were left out, so no run can continue from here.
    """


@hookspec
def before_restore() -> None:
    """A checkpoint is about to be restored. It has not been compared with the loop yet.

    Complete what it is compared with: optimizers get all their groups. Sent once per restore, and
    before ``load_best=True`` restores weights at the end.
    """


@hookspec(firstresult=True)
def whole_gradients(optimizer: Optimizer) -> list[Tensor | None] | None:
    """A checkpoint is written in the middle of a step, whose gradients are to go into it.

    Answer if an engine keeps them outside of ``p.grad``, or on some ranks only: the gradient of
    each parameter of the optimizer, with its shape and dtype, in the order of its groups, whole and
    averaged, or None.
    Fired on all ranks, which may use collectives.
    """


@hookspec(firstresult=True)
def put_gradients(optimizer: Optimizer, gradients: list[Tensor | None]) -> bool | None:
    """A checkpoint restores gradients. It has emptied ``p.grad``, and writes there unless the
    answer is True.

    ``gradients``: of the parameters' shapes and dtypes, as ``whole_gradients`` has them; an empty
    list if the checkpoint has none.
    """
