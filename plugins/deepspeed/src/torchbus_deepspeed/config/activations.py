"""The section ``activation_checkpointing``: DeepSpeed follows it only in a function of its own."""

from __future__ import annotations

from typing import Any

from torchbus.plugin import UsageError

from torchbus_deepspeed.config.known import nearest

SECTION = "activation_checkpointing"
CHANGES = (
    "partition_activations",
    "cpu_checkpointing",
    "contiguous_memory_optimization",
    "synchronize_checkpoint_boundary",
    "profile",
)
KNOWN = (*CHANGES, "number_checkpoints")
NOT_HERE = (
    "config: activation_checkpointing.{}={!r} has no effect here: DeepSpeed follows it only in"
    " deepspeed.checkpointing.checkpoint, which the model would have to call. Leave it out, and"
    " pass activation_checkpointing='auto' to the session (torchbus-activation)"
)
UNKNOWN = "config: activation_checkpointing has an unknown key {!r}{}: known are {}"


def check(section: Any) -> None:
    """Raise UsageError for what would have no effect. A section that asks for nothing is taken."""
    if section is None:
        return
    if not isinstance(section, dict):
        raise UsageError(
            f"config: activation_checkpointing is a {type(section).__name__}; it must be an object"
        )
    for key, value in section.items():
        if key not in KNOWN:
            raise UsageError(UNKNOWN.format(key, nearest(key, KNOWN), ", ".join(KNOWN)))
        if key in CHANGES and value not in (False, None, "auto"):
            raise UsageError(NOT_HERE.format(key, value))
