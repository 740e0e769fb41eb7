"""Reading what anybody may have written: whatever is wrong with it becomes a CheckpointError of one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchbus.plugin import TorchbusError

from torchbus_checkpoint.disk import folder
from torchbus_checkpoint.errors import CheckpointError


@contextmanager
def reading(checkpoint: Path) -> Iterator[None]:
    """Inside, every error is a TorchbusError that names the checkpoint."""
    try:
        yield
    except TorchbusError as error:
        raise type(error)(printable(str(error))) from None
    except Exception as error:  # bytes that somebody made up may raise anything in torch's and Python's readers
        words = printable(str(error).strip().split("\n", 1)[0][:300])
        raise CheckpointError(f"checkpoint {printable(str(checkpoint))} can't be read: {type(error).__name__}: {words}") from None


def manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest, fit to be shown. Raises CheckpointError."""
    with reading(checkpoint):
        content = folder.manifest(checkpoint)
        odd = next((name for name in content["files"] if not name.isprintable()), None)
        if odd is not None:
            raise CheckpointError(f"checkpoint {checkpoint} is damaged: {odd!r} is no file in it")
        if type(content.get("epoch")) is not int:
            raise CheckpointError(f"checkpoint {checkpoint} is damaged: its epoch is {content.get('epoch')!r}, which is no number")
    return content


def printable(text: str) -> str:
    """Without characters that steer a terminal, or that it can't write."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
