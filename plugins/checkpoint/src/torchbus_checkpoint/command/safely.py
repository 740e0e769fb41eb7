"""Read files that anybody may have written. Each fault becomes a CheckpointError of one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchbus.plugin import TorchbusError

from torchbus_checkpoint.disk import folder
from torchbus_checkpoint.disk.formats import Manifest
from torchbus_checkpoint.errors import CheckpointError


@contextmanager
def reading(checkpoint: Path) -> Iterator[None]:
    """Turn every error inside into a TorchbusError that names the checkpoint."""
    try:
        yield
    except TorchbusError as error:
        raise type(error)(printable(str(error))) from None
    # made-up bytes may raise anything in torch's and Python's readers
    except Exception as error:
        words = printable(str(error).strip().split("\n", 1)[0][:300])
        raise CheckpointError(
            f"checkpoint {printable(str(checkpoint))} can't be read: {type(error).__name__}:"
            f" {words}"
        ) from None


def manifest(checkpoint: Path) -> Manifest:
    """Return the manifest, which is then fit to be printed. Raises CheckpointError."""
    with reading(checkpoint):
        content = folder.manifest(checkpoint)
        odd = next((name for name in content["files"] if not name.isprintable()), None)
        if odd is not None:
            raise CheckpointError(
                f"checkpoint {checkpoint} is damaged: {odd!r} is not the name of a file"
            )
        if type(content.get("epoch")) is not int:
            raise CheckpointError(
                f"checkpoint {checkpoint} is damaged: its epoch is {content.get('epoch')!r}, which"
                " is not a number"
            )
    return content


def printable(text: str) -> str:
    """Escape the characters that control a terminal, and those that it can't print."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )
