"""Describe the models, the optimizers and the rest of a checkpoint in words.

The numbers of tensors are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from torchbus_checkpoint.disk import folder, saving
from torchbus_checkpoint.disk.divided import NOTE
from torchbus_checkpoint.disk.formats import Manifest


class Described(TypedDict):
    """The words for each kind of thing. Those for plugins come from rank 0's file."""

    models: list[str]
    optimizers: list[str]
    schedulers: list[str]
    scalers: list[str]
    registered: list[str]
    plugins: list[str]


def described(checkpoint: Path, manifest: Manifest) -> Described:
    """Describe one checkpoint. Raises CheckpointError if a file is missing or can't be read."""
    saved = folder.described(checkpoint, saving.TRAINING, manifest)
    weights = (
        saved["models"]
        if "groups" in saved
        else [folder.described(checkpoint, name, manifest) for name in saving.names(saved)]
    )
    rank_0 = folder.described(checkpoint, "rank-0", manifest)
    models = zip(saved["trained"] + saved["other"], weights, strict=True)
    return {
        "models": [_with_size(entry, state) for entry, state in models],
        "optimizers": [_with_size(entry, entry["state"]["state"]) for entry in saved["optimizers"]],
        "schedulers": [_named(entry) for entry in saved["schedulers"]],
        "scalers": [_named(entry) for entry in saved["scalers"]],
        "registered": [str(name) for name in saved["registered"]],
        "plugins": [str(name) for name in rank_0["plugins"]],
    }


def _named(entry: dict[str, str]) -> str:
    return f"{entry['name']} ({entry['class']})"


def _with_size(entry: dict[str, str], state: object) -> str:
    sizes = [torch.Size(shape).numel() for shape in _shapes(state)]
    return f"{_named(entry)} with {len(sizes)} tensors of {sum(sizes)} numbers"


def _shapes(value: object) -> Iterator[list[int]]:
    """Yield the shape of each tensor. Of a sharded tensor, the file has a note with its shape."""
    if isinstance(value, Tensor):
        yield list(value.shape)
    elif isinstance(value, dict) and NOTE in value:
        yield value["shape"]
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _shapes(item)
