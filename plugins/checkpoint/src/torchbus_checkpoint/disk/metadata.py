"""The file ``.metadata`` of torch.distributed.checkpoint, a pickle.

Only the few types that belong in it are loaded.
"""

from __future__ import annotations

import pickle
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torchbus_checkpoint._compat import LAYOUT
from torchbus_checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from torch.distributed.checkpoint import Metadata

NAME = ".metadata"
OF_DCP = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
OTHERS = {
    ("torch", "Size"),
    LAYOUT,
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
}
OTHERS |= {
    ("pathlib", "WindowsPath"),
    ("pathlib._local", "PosixPath"),
    ("pathlib._local", "WindowsPath"),
}


def read(folder: Path) -> Metadata:
    """Read where each part of each tensor is. Runs no code.

    Raises CheckpointError for a type that does not belong in there.
    """
    with (folder / NAME).open("rb") as file:
        try:
            found: Metadata = _Unpickler(file).load()
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"checkpoint {folder}: {NAME} holds something that no checkpoint holds: {error}"
            ) from None
    return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("builtins", "getattr"):
            return _member
        if module in OF_DCP or module == "torch" or (module, name) in OTHERS:
            found = super().find_class(module, name)
            own = isinstance(found, type) and found.__module__ == module in OF_DCP
            if own or (module, name) in OTHERS or isinstance(found, torch.dtype):
                return found
        raise pickle.UnpicklingError(f"{module}.{name}")


def _member(kind: object, name: str) -> Enum:
    """Return a member of an enumeration, which Python 3.11.0 to 3.11.3 write as a ``getattr``."""
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise pickle.UnpicklingError(f"builtins.getattr({kind!r}, {name!r})")
    return kind[name]
