"""The options of this repository's packages, for type checkers and editors.

Written by core/generate.py from the packages: change those, and run it again.
"""

from __future__ import annotations

import collections.abc
import datetime
import os
import typing

import torch.nn

from torchbus.installed import MoreOptions

StrategyName = typing.Literal[
    "accelerate",
    "ddp",
    "dp",
    "ddp2",
    "ddp_notebook",
    "ddp_spawn",
    "deepspeed",
    "deepspeed_stage_1",
    "deepspeed_stage_2",
    "deepspeed_stage_3",
    "deepspeed_stage_2_offload",
    "deepspeed_stage_3_offload",
    "pipeline",
    "rpc_sequential",
    "fsdp",
    "ddp_sharded",
    "tp",
    "ft",
    "horovod",
    "tpu",
]
LoggerName = typing.Literal[
    "local",
    "neptune",
    "wandb",
    "tensorboard",
    "aim",
    "clearml",
    "comet",
    "csv",
    "dvclive",
    "mlflow",
    "swanlab",
    "trackio",
]


class KnownOptions(MoreOptions, total=False):
    """What ``session`` takes beside its own options."""

    accelerate_config: str | os.PathLike[str] | None
    accumulate_grad_batches: int | collections.abc.Mapping[int, int]
    activation_checkpointing: str | collections.abc.Collection[type[torch.nn.Module]]
    adasum: bool
    amp_backend: str
    async_save: bool
    auto_wrap_policy: str | int | collections.abc.Collection[type[torch.nn.Module] | str] | None
    autolog: bool
    backend: str | None
    balance: str | collections.abc.Sequence[int]
    batch: typing.Literal["per_device", "global"]
    batch_dim: int | None
    blocks: str
    bucket_cap_mb: float
    check_on_train_epoch_end: bool
    checkpoint: str | os.PathLike[str] | None
    compression: typing.Literal["none", "fp16"]
    config: collections.abc.Mapping[str, typing.Any] | str | os.PathLike[str] | None
    cpu_offload: bool
    detect_anomaly: bool
    deterministic: bool | typing.Literal["warn"]
    divergence_threshold: float | None
    early_stop: str | None
    early_stop_mode: typing.Literal["min", "max"]
    early_stop_strict: bool
    ema_decay: float | None
    every_minutes: float | None
    every_n_epochs: int | None
    every_n_steps: int | None
    fast_dev_run: bool | int
    flops: bool | float | None
    forward_methods: tuple[str, ...]
    fp8_config: object
    fp8_skip: collections.abc.Sequence[str]
    freeze_batchnorm: bool
    gpu_monitor: bool
    gradient_algorithm: typing.Literal[
        "allreduce",
        "fp16",
        "bf16",
        "powersgd",
        "bytegrad",
        "local_sgd",
        "decentralized",
        "low_precision_decentralized",
        "async",
        "diloco",
    ]
    gradient_clip_algorithm: typing.Literal["norm", "value"]
    gradient_clip_val: float | None
    hybrid: bool
    interval_s: float
    keep: int | None
    limit_eval_batches: float | None
    limit_train_batches: float | None
    lint: bool
    load_best: bool
    local_copy: str | os.PathLike[str] | None
    log_dir: str | os.PathLike[str]
    log_every_n_steps: int
    log_grad_norms: typing.Literal["layer", "parameter"] | None
    loss_parallel: bool
    loss_reduction: typing.Literal["auto", "mean", "sum"] | typing.Literal["mean", "sum"] | None
    loss_weight: typing.Literal["auto", "samples", "tokens"]
    max_steps: int | None
    max_time: str | float | datetime.timedelta | None
    memory_snapshot: bool
    microbatches: int
    min_delta: float
    mixed_precision: typing.Literal["bf16", "16"] | None
    mode: typing.Literal["min", "max"]
    model_summary: bool | int
    monitor: str | None
    overfit_batches: float | None
    param_init_fn: collections.abc.Callable[[torch.nn.Module], object] | None
    patience: int
    peak_flops: float | None
    plan: collections.abc.Mapping[str, typing.Any] | str
    precision: typing.Literal[
        "32-true",
        "64-true",
        "16-mixed",
        "bf16-mixed",
        "16-true",
        "bf16-true",
        "fp8",
    ]
    profile: bool | collections.abc.Mapping[str, int | bool] | None
    profile_folder: str | os.PathLike[str]
    progress: bool
    quantize: typing.Literal["nf4", "int8"] | None
    quantize_library: typing.Literal["auto", "torchao", "bitsandbytes"]
    quantize_skip: collections.abc.Sequence[str]
    replace_sampler: bool
    reshard_after_forward: bool | None
    resume: str | os.PathLike[str]
    safetensors: bool
    sample_ledger: str | os.PathLike[str] | None
    scale_lr: typing.Literal["linear", "sqrt"] | None
    schedule: typing.Literal["gpipe", "1f1b", "interleaved"]
    schedule_free: bool
    sequence_parallel: bool
    shard_eval: bool
    shard_gradients: bool
    sharded_save: bool
    stages: int | None
    stop_on_nan: bool
    stopping_threshold: float | None
    swa_start: int | None
    sync_batchnorm: bool
    sync_buffers: (
        typing.Literal["rank0", "mean", "sum"]
        | collections.abc.Mapping[str, typing.Literal["rank0", "mean", "sum"]]
    )
    sync_loss: bool
    throughput_every: int
    time_limit: str | datetime.timedelta | None
    tokens: str | int | collections.abc.Callable[[typing.Any], int] | None
    tp: int | None
    unfreeze: collections.abc.Mapping[str, int | str] | None
    unfreeze_lr: float
    verify_every: int
    warmup_steps: int
