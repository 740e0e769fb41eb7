"""The keys of a config: those that hold here, and those that torchbus or the loop does instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from torchbus.plugin import UsageError

TAKEN = (
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
    "autotuning": "it starts trainings of its own",
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
UNKNOWN = "config has an unknown key {!r}{}: DeepSpeed would ignore it; known are {}"


def refuse_unknown(config: Mapping[str, Any]) -> None:
    """Raise UsageError for a key that would have no effect."""
    for key in config:
        if key in INSTEAD:
            raise UsageError(f"config has {key!r}, which has no effect here: {INSTEAD[key]}")
        if key not in TAKEN:
            raise UsageError(UNKNOWN.format(key, nearest(key, TAKEN), ", ".join(TAKEN)))


def refuse_unknown_zero(section: Mapping[str, Any], known: Iterable[str]) -> None:
    """The same in ``zero_optimization``. ``known``: what the installed release has."""
    names = sorted(known)
    for key in section:
        if key not in names:
            raise UsageError(
                f"config: zero_optimization has an unknown key {key!r}{nearest(key, names)}: the"
                f" installed DeepSpeed knows {', '.join(names)}"
            )


def nearest(key: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(names), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
