"""Recognise the samples of a pass by what can be seen from outside: indices, rows of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torchbus.plugin import UsageError, warn

from torchbus_checkpoint.loop.generators import parts
from torchbus_checkpoint.state.hashes import digest

CHOICES = ("indices", "weights")  # of Subset, SubsetRandomSampler, WeightedRandomSampler
LOOKED_AT = 1000


def look(loader: DataLoader[object]) -> dict[str, str]:
    """Return digests of the chosen indices and of the tensors, of large ones only of a part."""
    return {
        "chosen": digest(list(_choices(loader))),
        "held": digest([_some(tensor) for tensor in _tensors(loader)]),
    }


def compare(saved: dict[str, str], loader: DataLoader[object], over: str) -> None:
    """Raise UsageError if the pass uses other samples than before. Warn if their data differs."""
    now = look(loader)
    if saved["chosen"] != now["chosen"]:
        raise UsageError(
            f"the interrupted pass over a loader of {over} used other samples: the loop chooses"
            " them by numbers that a replay does not have (a count, a loss). Choose them by the"
            " epoch, or by random numbers"
        )
    if saved["held"] != now["held"]:
        warn(
            f"the tensors of the loader of {over} differ from those of the interrupted pass: either"
            " somebody has changed the data, or the loop has made other tensors"
        )


def _choices(loader: DataLoader[object]) -> Iterator[Sequence[object] | Tensor]:
    for _, part in parts(loader):
        for name in CHOICES:
            value = getattr(part, "__dict__", {}).get(name)
            if isinstance(value, list | tuple | range | Tensor):
                yield _some(value)


def _tensors(loader: DataLoader[object]) -> Iterator[Tensor]:
    for _, part in parts(loader):
        if isinstance(part, TensorDataset):
            yield from part.tensors


def _some(value: Sequence[object] | Tensor) -> Sequence[object] | Tensor:
    return value[:: max(1, len(value) // LOOKED_AT)] if len(value) else []
