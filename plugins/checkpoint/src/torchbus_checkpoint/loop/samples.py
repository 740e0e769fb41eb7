"""Which samples a pass is over, as far as that can be seen from outside: the indices of a subset, the rows of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torchbus.plugin import UsageError, warn

from torchbus_checkpoint.loop.generators import parts
from torchbus_checkpoint.state.hashes import digest

CHOICES = ("indices", "weights")  # of Subset, SubsetRandomSampler, WeightedRandomSampler
LOOKED_AT = 1000


def look(loader: DataLoader[Any]) -> dict[str, str]:
    """A digest of what is chosen, and of what is in it; of large ones, of every so manieth."""
    return {"chosen": digest(list(_choices(loader))), "held": digest([_some(tensor) for tensor in _tensors(loader)])}


def compare(saved: dict[str, str], loader: DataLoader[Any], over: str) -> None:
    """Raise UsageError if the pass that is to be gone on with chooses other samples; say it if they hold something else."""
    now = look(loader)
    if saved["chosen"] != now["chosen"]:
        raise UsageError(
            f"the interrupted pass over a loader of {over} had chosen other samples: the loop chooses them by numbers that a replay does not have "
            "(a count, a loss). Choose them by the epoch, or by random numbers"
        )
    if saved["held"] != now["held"]:
        warn(
            f"the tensors of the loader of {over} are not those that the interrupted pass was over: if nobody has changed them, the loop "
            "has made others"
        )


def _choices(loader: DataLoader[Any]) -> Iterator[Any]:
    for _, part in parts(loader):
        for name in CHOICES:
            value = getattr(part, "__dict__", {}).get(name)
            if isinstance(value, list | tuple | range | Tensor):
                yield _some(value)


def _tensors(loader: DataLoader[Any]) -> Iterator[Tensor]:
    for _, part in parts(loader):
        if isinstance(part, TensorDataset):
            yield from part.tensors


def _some(value: Any) -> Any:
    return value[:: max(1, len(value) // LOOKED_AT)] if len(value) else []
