"""Translates a file of ``accelerate config`` into options of a session.

A setting without an option that does the same is refused by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from accelerate.commands.config import config_args
from torchbus.plugin import UsageError, expect

from torchbus_launch import config_file
from torchbus_launch.launched_rank import world_size_seen

Options = dict[str, Any]
OF_LAUNCH = (
    *("debug", "machine_rank", "main_process_ip", "main_process_port", "main_training_function"),
    *("rdzv_backend", "same_network"),
)
"""Settings that only `accelerate launch` needs. A session always does the checks of ``debug``."""
FSDP_WAYS = (
    *("version", "backward_prefetch", "backward_prefetch_policy", "forward_prefetch"),
    *("use_orig_params", "sync_module_states", "cpu_ram_efficient_loading"),
)
"""Settings that do not change the numbers. The strategy fsdp chooses them itself."""
DEEPSPEED_WAYS = (
    *("deepspeed_multinode_launcher", "deepspeed_hostfile", "zero3_save_16bit_model"),
    *("deepspeed_inclusion_filter", "deepspeed_exclusion_filter"),
)
INSTEAD = {
    "downcast_bf16": "use strategy='tpu'",
    "dynamo_config": "call torch.compile(model) in the script",
    "enable_cpu_affinity": "start the script by numactl",
    "megatron_lm_config": "use strategy='tp' or 'pipeline'",
    "mixed_precision": "pass precision='fp8'",
    "mpirun_config": "start the script by mpirun, whose ranks the session joins",
    "parallelism_config": "use strategy='fsdp' with tp= or hybrid=True",
    "zero3_init_flag": "use strategy='fsdp', which takes models on the meta device",
}
SHARDING: dict[str, Options] = {
    "TRUE": {},
    "FALSE": {"reshard_after_forward": False},
    "FULL_SHARD": {},
    "SHARD_GRAD_OP": {"reshard_after_forward": False},
    "HYBRID_SHARD": {"hybrid": True},
    "HYBRID_SHARD_ZERO2": {"hybrid": True, "reshard_after_forward": False},
}
PRECISIONS: dict[str, Options] = {
    "no": {},
    "bf16": {"precision": "bf16-mixed"},
    "fp16": {"precision": "16-mixed"},
}
GATHERED = {"bf16": "bf16", "fp16": "16"}
UNSAID = {"strategy": "accelerate", "devices": "auto", "accelerator": "auto", "num_nodes": 1}
"""The defaults of the session's options that a file may set."""
MISSING = (
    "strategy='accelerate' reads {}, which does not exist: run `accelerate config`, or name a file"
    " by accelerate_config="
)
UNREADABLE = "accelerate_config={!r} can't be read: {}"
REFUSED = "{}: {}={!r} is not offered by strategy='accelerate': {}"


class AccelerateConfig(os.PathLike[str]):
    """The path of a file, and its translation to ``options`` of a session."""

    def __init__(self, path: Path, options: Options) -> None:
        self.path, self.options = path, options

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.path} says {said}"


def merged(given: Mapping[str, Any]) -> Options:
    """Return the options of a call, completed by those of the file that the call names.

    Raises UsageError if the file is missing, unreadable, or has a setting that is not supported.
    """
    path = given.get("accelerate_config")
    expect("accelerate_config", path, (str, os.PathLike, type(None)), "a path")
    config = read(Path(config_args.default_config_file if path is None else path))
    if "gradient_clip_val" in given:
        config.options.get("config", {}).pop("gradient_clipping", None)
    if not given.get("checkpoint"):
        config.options.pop("sharded_save", None)
    said = {name: one for name, one in given.items() if UNSAID.get(name, MISSING) != one}
    return {**given, "strategy": "auto", **config.options, **said, "accelerate_config": config}


def read(path: Path) -> AccelerateConfig:
    """Return the options of a file. Raises UsageError, as ``merged`` does."""
    if not path.is_file():
        raise UsageError(MISSING.format(path))
    try:
        config = config_args.load_config_from_file(str(path))
    except Exception as error:  # of the parsers of YAML and JSON, or of a key
        raise UsageError(UNREADABLE.format(str(path), error)) from error
    return AccelerateConfig(path, _options(Section(path, "", vars(config))))


class Section:
    """A section of a file. Each value becomes an option, has no effect, or is refused."""

    def __init__(self, path: Path, prefix: str, values: Mapping[str, Any]) -> None:
        self._path, self._prefix = path, prefix
        self._values = {name.removeprefix(prefix): value for name, value in values.items()}

    def take(self, name: str, default: Any = None) -> Any:
        value = self._values.pop(name, None)
        return default if value is None else getattr(value, "value", value)

    def inner(self, name: str, prefix: str) -> Section:
        return Section(self._path, prefix, self.take(name, {}))

    def refuse(self, name: str, value: object) -> NoReturn:
        remedy = INSTEAD.get(name, "remove it")
        raise UsageError(REFUSED.format(self._path, f"{self._prefix}{name}", value, remedy))

    def end(self, without_effect: tuple[str, ...]) -> None:
        """Raise UsageError for the remaining values, unless they have no effect or are off."""
        for name, value in self._values.items():
            if name not in without_effect and not _is_off(value):
                self.refuse(name, value)


def _is_off(value: object) -> bool:
    if isinstance(value, dict):
        return all(one == 1 or _is_off(one) for one in value.values())
    return value in (None, False, "", "no", "NO", [])


def _options(file: Section) -> Options:
    where, kind = file.take("compute_environment"), file.take("distributed_type")
    if where != "LOCAL_MACHINE":
        file.refuse("compute_environment", where)
    precision = file.take("mixed_precision", "no")
    if precision not in PRECISIONS:
        file.refuse("mixed_precision", precision)
    file.take("fp8_config")
    fsdp, deepspeed = file.inner("fsdp_config", "fsdp_"), file.inner("deepspeed_config", "")
    options = _ranks(file, kind)
    if kind == "DEEPSPEED":
        options |= _deepspeed(deepspeed, precision)
    elif kind == "FSDP":
        options |= _fsdp(fsdp, precision) | PRECISIONS[precision]
    elif kind == "NO" or kind.startswith("MULTI_"):
        options |= PRECISIONS[precision] | ({} if kind == "NO" else {"strategy": "ddp"})
    else:
        file.refuse("distributed_type", kind)
    file.end(OF_LAUNCH)
    return options


def _ranks(file: Section, kind: str) -> Options:
    """Return the ranks' accelerator, and their number unless a launcher has started them."""
    on_cpu = bool(file.take("use_cpu")) or kind == "MULTI_CPU"
    one = 1 if kind == "NO" else -1
    processes, nodes = file.take("num_processes", one), file.take("num_machines", 1)
    gpus = str(file.take("gpu_ids", "all"))
    options: Options = {"accelerator": "cpu" if on_cpu else "auto" if kind == "NO" else "gpu"}
    if world_size_seen() > 1 or processes < 1:
        return options
    if processes % nodes:
        file.refuse("num_processes", processes)
    options["devices"] = processes // nodes
    if gpus != "all" and not on_cpu:
        options["devices"] = [int(one) for one in gpus.split(",")][: processes // nodes]
    return options | ({"num_nodes": nodes} if nodes > 1 else {})


def _fsdp(section: Section, precision: str) -> Options:
    older = section.take("sharding_strategy", "FULL_SHARD")
    sharding = section.take("reshard_after_forward", older)
    if sharding == "NO_SHARD":
        return {"strategy": "ddp"}
    if str(sharding).upper() not in SHARDING:
        section.refuse("reshard_after_forward", sharding)
    options: Options = {"strategy": "fsdp"} | SHARDING[str(sharding).upper()] | _units(section)
    if precision in GATHERED:
        options["mixed_precision"] = GATHERED[precision]
    if section.take("offload_params"):
        options["cpu_offload"] = True
    if section.take("activation_checkpointing"):
        options["activation_checkpointing"] = "auto"
    saved = section.take("state_dict_type", "FULL_STATE_DICT")
    if saved == "SHARDED_STATE_DICT":
        options["sharded_save"] = True
    elif saved != "FULL_STATE_DICT":
        section.refuse("state_dict_type", saved)
    section.end(FSDP_WAYS)
    return options


def _units(section: Section) -> Options:
    """Return ``auto_wrap_policy``. Without a policy, Accelerate gathers the whole model at once."""
    policy = section.take("auto_wrap_policy", "NO_WRAP")
    names, size = section.take("transformer_layer_cls_to_wrap"), section.take("min_num_params")
    if policy == "TRANSFORMER_BASED_WRAP":
        return {"auto_wrap_policy": [one.strip() for one in names.split(",")] if names else "auto"}
    if policy == "SIZE_BASED_WRAP":
        return {"auto_wrap_policy": int(size or 1e8)}
    if policy != "NO_WRAP":
        section.refuse("auto_wrap_policy", policy)
    return {"auto_wrap_policy": None}


def _deepspeed(section: Section, precision: str) -> Options:
    file = section.take("deepspeed_config_file", "none")
    config = _zero(section) if file == "none" else _json(file)
    if precision != "no" and (config.get(precision) or {}).get("enabled", "auto") == "auto":
        config[precision] = {**(config.get(precision) or {}), "enabled": True}
    windows = config.pop("gradient_accumulation_steps", 1)
    if (
        section.take("zero3_init_flag")
        and (config.get("zero_optimization") or {}).get("stage") == 3
    ):
        section.refuse("zero3_init_flag", True)
    section.end(DEEPSPEED_WAYS)
    several = windows not in (1, "auto")
    return {"strategy": "deepspeed", "config": config} | (
        {"accumulate_grad_batches": windows} if several else {}
    )


OFFLOADS = {
    "offload_optimizer": ("offload_optimizer_device", "offload_optimizer_nvme_path"),
    "offload_param": ("offload_param_device", "offload_param_nvme_path"),
}


def _zero(section: Section) -> Options:
    """Return DeepSpeed's config with the settings that `accelerate config` asks for."""
    zero: Options = {"stage": section.take("zero_stage", 2)}
    for key, (device_key, path_key) in OFFLOADS.items():
        device, path = section.take(device_key, "none"), section.take(path_key)
        if device != "none":
            on_disk = {"nvme_path": path} if device == "nvme" else {}
            zero[key] = {"device": device, **on_disk}
    config: Options = {"zero_optimization": zero}
    for name in ("gradient_accumulation_steps", "gradient_clipping"):
        value = section.take(name)
        if value not in (None, "auto", "none"):
            config[name] = value
    return config


def _json(path: str) -> Options:
    try:
        found: Options = json.loads(config_file.read_text(Path(path)))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(UNREADABLE.format(path, error)) from error
    return found
