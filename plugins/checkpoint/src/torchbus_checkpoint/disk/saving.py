"""The two formats of models and optimizers: whole, or in parts.

Rank 0 writes whole tensors. Each rank writes its own parts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torchbus_checkpoint.disk import divided, folder
from torchbus_checkpoint.loop.contents import Contents
from torchbus_checkpoint.state import shapes, written
from torchbus_checkpoint.state.plain import State, gathered

TRAINING = "training"


def files(
    in_parts: bool, weights: dict[str, State], training: State, is_main: bool
) -> tuple[dict[str, object], divided.Groups | None]:
    """Return the files that rank 0 writes, and the tensors that each rank writes its parts of.

    All ranks call it. The names of files have no suffix.
    """
    if in_parts:
        notes, groups = divided.split(weights, training, is_main)
        rest = gathered({TRAINING: notes}, keep=is_main)
        return (rest if is_main else {}), groups
    whole = gathered({**weights, TRAINING: training | {"weights": list(weights)}}, keep=is_main)
    return (whole if is_main else {}), None


def loaded(found: Path, contents: Contents) -> tuple[State, list[State], Callable[[], None]]:
    """Return the saved state, the states of the models, and a function that reads sharded tensors.

    Call the function once the states are checked. It fills the tensors in them.
    """
    saved = folder.read_file(found, TRAINING)
    in_parts = isinstance(saved, dict) and "groups" in saved
    shapes.refuse_unlike(found, TRAINING, saved, written.IN_PARTS if in_parts else written.WHOLE)
    if not in_parts:
        return saved, [_weights(found, name) for name in names(saved)], lambda: None
    from torchbus_checkpoint.disk import parts

    index = parts.index(found)
    with shapes.as_written(found, TRAINING):
        saved, weights, groups = divided.prepared(saved, contents, index)
    shapes.refuse_unlike(found, TRAINING, saved["optimizers"], [written.OPTIMIZER])
    return saved, weights, lambda: parts.read(found, index, groups)


def names(saved: State) -> list[str]:
    """Return the names of the models' files, without suffix: formats 1 and 2 write ``model.pt``."""
    return [name.removesuffix(".pt") for name in saved["weights"]]


def _weights(found: Path, name: str) -> State:
    content: State = folder.read_file(found, name)
    shapes.refuse_unlike(found, name, content, written.WEIGHTS)
    return content
