"""The models, optimizers and the rest of a checkpoint in words. Tensors are mapped from the file, and not read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbus_checkpoint.disk import reading
from torchbus_checkpoint.disk.divided import NOTE
from torchbus_checkpoint.errors import CheckpointError

Described = ("models", "optimizers", "schedulers", "scalers", "registered", "plugins")
Words = dict[str, list[str]]


def described(checkpoint: Path, manifest: dict[str, Any]) -> Words:
    """Words by kind of thing; those of plugins are rank 0's."""
    saved = _mapped(checkpoint, manifest, "training.pt")
    weights = saved["models"] if "groups" in saved else [_mapped(checkpoint, manifest, name) for name in saved["weights"]]
    models = zip(saved["trained"] + saved["other"], weights, strict=True)
    return {
        "models": [_with_size(entry, state) for entry, state in models],
        "optimizers": [_with_size(entry, entry["state"]["state"]) for entry in saved["optimizers"]],
        "schedulers": [_named(entry) for entry in saved["schedulers"]],
        "scalers": [_named(entry) for entry in saved["scalers"]],
        "registered": [str(name) for name in saved["registered"]],
        "plugins": [str(name) for name in _mapped(checkpoint, manifest, "rank-0.pt")["plugins"]],
    }


def _mapped(checkpoint: Path, manifest: dict[str, Any], name: str) -> Any:
    if name not in manifest["files"]:
        raise CheckpointError(f"checkpoint {checkpoint} is damaged: the manifest has no {name}")
    try:
        with reading.opened(checkpoint / name):  # torch would wait for a pipe
            pass
    except OSError as error:
        raise CheckpointError(f"checkpoint {checkpoint} is damaged: {name} can't be read ({error.strerror})") from None
    return torch.load(checkpoint / name, map_location="cpu", weights_only=True, mmap=True)


def _named(entry: dict[str, Any]) -> str:
    return f"{entry['name']} ({entry['class']})"


def _with_size(entry: dict[str, Any], state: Any) -> str:
    sizes: list[int] = []
    _walk(state, lambda shape: sizes.append(torch.Size(shape).numel()))
    return f"{_named(entry)} with {len(sizes)} tensors of {sum(sizes)} numbers"


def _walk(value: Any, found: Callable[[Any], None]) -> None:
    """The shape of each tensor, or of what stands for it where tensors are in parts."""
    if isinstance(value, Tensor):
        found(value.shape)
    elif isinstance(value, dict) and NOTE in value:
        found(value["shape"])
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            _walk(item, found)
