"""The keys of a config: supported ones, and those that torchbus or the loop replaces."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from torchbus.plugin import UsageError, an

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
ACTIVATIONS_UNKNOWN = "config: activation_checkpointing has an unknown key {!r}{}: known are {}"


def check(section: Any) -> None:
    """Raise UsageError for keys of ``activation_checkpointing`` that would have no effect.

    A key with the value false, null or "auto" is accepted.
    """
    if section is None:
        return
    if not isinstance(section, dict):
        raise UsageError(
            f"config: activation_checkpointing is {an(type(section).__name__)}; it must be an"
            " object"
        )
    for key, value in section.items():
        if key not in KNOWN:
            raise UsageError(ACTIVATIONS_UNKNOWN.format(key, nearest(key, KNOWN), ", ".join(KNOWN)))
        if key in CHANGES and value not in (False, None, "auto"):
            raise UsageError(NOT_HERE.format(key, value))


AUTO = "auto"
SIZES = ("gradient_accumulation_steps", "train_batch_size", "train_micro_batch_size_per_gpu")
PRECISIONS = ("bf16", "fp16")
OFFLOADS = ("offload_optimizer", "offload_param")
DEVICES = ("none", "cpu", "nvme")
NO_SIZE = "config: {}={!r}: it must be a whole number from 1, or 'auto'"
NO_NORM = "config: gradient_clipping={!r}: it must be a norm, 0 for none, or 'auto'"
NO_OBJECT = "config: {} is {!r}; it must be an object, such as {}"
NO_DEVICE = "config: {}.device={!r}: it must be one of {}"
VALUES_UNKNOWN = "config: {} has an unknown key {!r}{}: the installed DeepSpeed knows {}"


def check_numbers(config: Mapping[str, Any]) -> None:
    """Raise UsageError for invalid sizes and norms."""
    for name in SIZES:
        value = config.get(name, AUTO)
        if value != AUTO and (type(value) is not int or value < 1):
            raise UsageError(NO_SIZE.format(name, value))
    norm = config.get("gradient_clipping", AUTO)
    if norm != AUTO and (not isinstance(norm, int | float) or isinstance(norm, bool) or norm < 0):
        raise UsageError(NO_NORM.format(norm))


def check_objects(config: Mapping[str, Any], zero: Mapping[str, Any]) -> None:
    """Raise UsageError for a section that is not an object, and for an unknown offload device."""
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
            raise UsageError(
                VALUES_UNKNOWN.format(name, key, nearest(key, names), ", ".join(names))
            )


SUPPORTED_KEYS = (
    "activation_checkpointing",
    "aio",
    "bf16",
    "communication_data_type",
    "comms_logger",
    "data_types",
    "disable_allgather",
    "dump_state",
    "fp16",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "log_level",
    "memory_breakdown",
    "optimizer",
    "steps_per_print",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "wall_clock_breakdown",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "zero_optimization",
)
INSTEAD = {
    "amp": "use precision='bf16-mixed', bf16 or fp16",
    "autotuning": "it starts separate training jobs",
    "bfloat16": "write bf16",
    "checkpoint": "torchbus writes the checkpoints: use checkpoint='folder'",
    "compression_training": "it changes the model's layers",
    "csv_monitor": "use logger='local'",
    "curriculum_learning": "the loop chooses its data",
    "data_efficiency": "the loop chooses its data",
    "dataloader_drop_last": "pass drop_last to the DataLoader",
    "elasticity": "the loop chooses its batch size",
    "flops_profiler": "it hooks DeepSpeed's own forward, which the loop doesn't call",
    "gradient_predivide_factor": "torchbus weighs gradients by samples",
    "hybrid_engine": "the loop calls its own model",
    "managed_gradient_accumulation": "use accumulate_grad_batches",
    "pipeline": "the loop calls its own model",
    "prescale_gradients": "torchbus weighs gradients by samples",
    "scheduler": "the loop makes its own scheduler",
    "sparse_gradients": "gradients become dense under ZeRO",
    "tensor_parallel": "the loop makes its own model",
    "tensorboard": "use logger='tensorboard'",
    "torch_autocast": "use precision='bf16-mixed'",
    "wandb": "use logger='wandb'",
}
KNOWN_UNKNOWN = "config has an unknown key {!r}{}: DeepSpeed would ignore it; known are {}"


def refuse_unknown(config: Mapping[str, Any]) -> None:
    """Raise UsageError for a key that would have no effect."""
    for key in config:
        if key in INSTEAD:
            raise UsageError(f"config has {key!r}, which has no effect here: {INSTEAD[key]}")
        if key not in SUPPORTED_KEYS:
            raise UsageError(
                KNOWN_UNKNOWN.format(key, nearest(key, SUPPORTED_KEYS), ", ".join(SUPPORTED_KEYS))
            )


def nearest(key: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(names), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
