"""Values that DeepSpeed would misread or ignore."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchbus.plugin import UsageError

from torchbus_deepspeed.config.known import nearest

AUTO = "auto"
SIZES = ("gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu")
PRECISIONS = ("bf16", "fp16")
OFFLOADS = ("offload_optimizer", "offload_param")
DEVICES = ("none", "cpu", "nvme")
NO_SIZE = "config: {}={!r}: it must be a whole number from 1, or 'auto'"
NO_NORM = "config: gradient_clipping={!r}: it must be a norm, 0 for none, or 'auto'"
NO_OBJECT = "config: {} is {!r}; it must be an object, such as {}"
NO_DEVICE = "config: {}.device={!r}: it must be one of {}"
UNKNOWN = "config: {} has an unknown key {!r}{}: the installed DeepSpeed knows {}"


def check_numbers(config: Mapping[str, Any]) -> None:
    """Raise UsageError for sizes and norms that are none."""
    for name in SIZES:
        value = config.get(name, AUTO)
        if value != AUTO and (type(value) is not int or value < 1):
            raise UsageError(NO_SIZE.format(name, value))
    norm = config.get("gradient_clipping", AUTO)
    if norm != AUTO and (not isinstance(norm, int | float) or isinstance(norm, bool) or norm < 0):
        raise UsageError(NO_NORM.format(norm))


def check_objects(config: Mapping[str, Any], zero: Mapping[str, Any]) -> None:
    """Raise UsageError for a section that is no object, and an unknown place of offload."""
    for where, names, such in (
        (config, PRECISIONS, '{"enabled": true}'),
        (zero, OFFLOADS, '{"device": "cpu"}'),
    ):
        for name in names:
            empty = (None, AUTO) if where is zero else (None,)
            if where.get(name) not in empty and not isinstance(where[name], dict):
                raise UsageError(NO_OBJECT.format(name, where[name], such))
    for name in OFFLOADS:
        section = zero.get(name)
        device = section.get("device", "none") if isinstance(section, dict) else "none"
        if device not in (*DEVICES, AUTO):
            raise UsageError(NO_DEVICE.format(name, device, ", ".join(DEVICES)))


def check_keys(name: str, section: object, known: Iterable[str]) -> None:
    """Raise UsageError for a key of a section that the installed DeepSpeed does not know."""
    names = sorted(known)
    for key in section if isinstance(section, dict) else ():
        if key not in names:
            raise UsageError(UNKNOWN.format(name, key, nearest(key, names), ", ".join(names)))
