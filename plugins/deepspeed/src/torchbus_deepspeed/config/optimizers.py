"""The section ``optimizer`` names the loop's own optimizer, or one of DeepSpeed's in its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer
from torchbus.plugin import UsageError

AUTO = "auto"
COMPRESSED = ("onebitadam", "zerooneadam", "onebitlamb")
GONE = (
    "config: optimizer.type={!r} has left DeepSpeed: 0.19.6 was the last release that had it. To"
    " send less, use strategy='ddp' with gradient_algorithm= (torchbus-compress)"
)
UNLIKE = (
    "the loop's {} has {}={!r}, and config says optimizer.params.{}={!r}: write 'auto', or leave it"
    " out"
)


def check(section: Mapping[str, Any] | None, optimizer: Optimizer) -> None:
    """Raise UsageError if the section contradicts the loop's optimizer."""
    if section is None:
        return
    kind, own = str(section.get("type", AUTO)), type(optimizer).__name__
    refuse_compressed(section)
    if kind != AUTO and kind.lower() != own.lower():
        raise UsageError(
            f"the loop makes {own}, and config says optimizer.type={kind!r}: leave the section out,"
            " or make that optimizer in the loop (deepspeed.ops.adam.FusedAdam, for example)"
        )
    for name, theirs in (section.get("params") or {}).items():
        for group in optimizer.param_groups:
            ours = group.get(name)
            if theirs != AUTO and _plain(ours) != _plain(theirs):
                raise UsageError(UNLIKE.format(own, name, ours, name, theirs))


def refuse_compressed(section: Mapping[str, Any]) -> None:
    """Raise UsageError for 1-bit optimizers."""
    kind = str(section.get("type", AUTO))
    if kind.lower() in COMPRESSED:
        raise UsageError(GONE.format(kind))


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
