"""The file ``.metadata`` of torch.distributed.checkpoint: a pickle, of which nothing but its own few types is taken."""

from __future__ import annotations

import pickle
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from torchbus_checkpoint.errors import CheckpointError

NAME = ".metadata"
OF_DCP = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
OTHERS = {("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict"), ("pathlib", "PosixPath")}
OTHERS |= {("pathlib", "WindowsPath"), ("pathlib._local", "PosixPath"), ("pathlib._local", "WindowsPath")}


def read(folder: Path) -> Any:
    """Where each part of each tensor stands. Raises CheckpointError for what does not belong in there: no code is run from it."""
    with (folder / NAME).open("rb") as file:
        try:
            return _Unpickler(file).load()
        except pickle.UnpicklingError as error:
            raise CheckpointError(f"checkpoint {folder}: {NAME} holds what a checkpoint does not hold: {error}") from None


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        if module in OF_DCP or module == "torch" or (module, name) in OTHERS:
            found = super().find_class(module, name)
            own = isinstance(found, type) and found.__module__ == module in OF_DCP
            if own or (module, name) in OTHERS or isinstance(found, torch.dtype):
                return found
        raise pickle.UnpicklingError(f"{module}.{name}")


def _member(kind: Any, name: str) -> Enum:
    """Python 3.11.0 to 3.11.3 write a member of an enumeration as ``getattr(kind, name)``."""
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise pickle.UnpicklingError(f"builtins.getattr({kind!r}, {name!r})")
    return kind[name]
