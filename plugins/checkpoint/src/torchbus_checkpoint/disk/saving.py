"""The two formats of models and optimizers: whole, or in parts.

Rank 0 writes whole tensors. Each rank writes its own parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchbus_checkpoint.disk import divided, folder
from torchbus_checkpoint.loop.contents import Contents
from torchbus_checkpoint.state import shapes, written
from torchbus_checkpoint.state.capture import as_safetensors
from torchbus_checkpoint.state.plain import State, gathered


@dataclass(frozen=True)
class Format:
    """``safetensors``: the weights are written in this format as well."""

    in_parts: bool
    safetensors: bool


def files(
    format: Format, weights: dict[str, State], training: State, is_main: bool
) -> tuple[dict[str, object], divided.Groups | None]:
    """Return the files that rank 0 writes, and the tensors that each rank writes its parts of.

    All ranks call it.
    """
    if format.in_parts:
        notes, groups = divided.split(weights, training, is_main)
        rest = gathered({"training.pt": notes}, keep=is_main)
        return (rest if is_main else {}), groups
    whole = gathered(
        {**weights, "training.pt": training | {"weights": list(weights)}}, keep=is_main
    )
    if format.safetensors and is_main:
        whole |= as_safetensors({name: whole[name] for name in weights})
    return (whole if is_main else {}), None


def loaded(found: Path, contents: Contents) -> tuple[State, list[State], Callable[[], None]]:
    """Return the saved state, the states of the models, and a function that reads sharded tensors.

    Call the function once the states are checked. It fills the tensors in them.
    """
    saved = folder.read_file(found, "training.pt")
    in_parts = isinstance(saved, dict) and "groups" in saved
    shapes.refuse_unlike(
        found, "training.pt", saved, written.IN_PARTS if in_parts else written.WHOLE
    )
    if not in_parts:
        return saved, [_weights(found, name) for name in saved["weights"]], lambda: None
    with shapes.as_written(found, "training.pt"):
        saved, weights, groups = divided.prepared(saved, contents)
    shapes.refuse_unlike(found, "training.pt", saved["optimizers"], [written.OPTIMIZER])

    def read() -> None:
        from torchbus_checkpoint.disk import parts  # slow

        parts.read(found, groups)

    return saved, weights, read


def _weights(found: Path, name: str) -> State:
    content: State = folder.read_file(found, name)
    shapes.refuse_unlike(found, name, content, written.WEIGHTS)
    return content
