"""Replaces operators and methods of DTensor until the end of the block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch.distributed.tensor import DTensor

from torchbus._compat.dtensors import forget_meshes, handlers
from torchbus._session.context import Context


def as_whole(
    session: Context,
    operators: Mapping[object, Callable[..., object]],
    methods: Mapping[str, object],
) -> None:
    """Let DTensor call these for operators, and have these methods.

    Those that gather are called on all ranks.
    """
    undo = {"DTensor's operators": _handle(operators)} | {
        f"DTensor.{name}": _give(name, ours) for name, ours in methods.items()
    }
    for name, put_back in undo.items():
        session.on_close.callback(session.seams.note(name, put_back))


@contextmanager
def torchs_own(operator: object) -> Iterator[None]:
    """Within, DTensor runs the operator as torch does, also if a session has given it another."""
    known = handlers()
    ours = known.pop(operator, None)
    try:
        yield
    finally:
        if ours is not None:
            known[operator] = ours


def forget_other_meshes(session: Context) -> None:
    """Forget the meshes of earlier blocks now, and this block's at its end.

    A process that is forked later would wait for the threads of this block's process group.
    """
    forget_meshes()
    session.on_close.callback(forget_meshes)


def _handle(ours: Mapping[object, Callable[..., object]]) -> Callable[[], None]:
    known = handlers()
    before = {operator: known[operator] for operator in ours if operator in known}
    known.update(ours)

    def undo() -> None:
        for operator in ours:
            known.pop(operator, None)
        known.update(before)

    return undo


def _give(name: str, ours: object) -> Callable[[], None]:
    """DTensor inherits these methods, so removing ours restores torch's."""
    setattr(DTensor, name, ours)
    return lambda: delattr(DTensor, name)
