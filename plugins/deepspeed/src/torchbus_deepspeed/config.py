"""DeepSpeed's config: read, checked against the loop, and completed from it."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer
from torchbus.plugin import Context, UsageError, an

from torchbus_deepspeed import _compat, known
from torchbus_deepspeed.optimizers import OptimizerSection
from torchbus_launch import config_file

VARIABLE = "DEEPSPEED_CONFIG"
Given = Mapping[str, Any] | str | os.PathLike[str] | None


def read(given: Given) -> dict[str, Any]:
    """Return a copy of the config, or an empty dict if there is none.

    Raises UsageError if it is neither a dict nor a readable JSON object.
    """
    where = VARIABLE if given is None else "config"
    found: object = (os.environ.get(VARIABLE) or {}) if given is None else given
    if isinstance(found, str | os.PathLike):
        found = _from_file(Path(found), where)
    if not isinstance(found, Mapping):
        raise UsageError(
            f"{where} is {an(type(found).__name__)}: pass a dict, or the path of a JSON file;"
            f" without it, {VARIABLE} may name such a file"
        )
    return copy.deepcopy(dict(found))


def _from_file(path: Path, where: str) -> object:
    try:
        return json.loads(config_file.read_text(path))
    except OSError as error:
        raise UsageError(f"{where}={str(path)!r} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}={str(path)!r} is not valid JSON: {error}") from error


OLDEST = (0, 19)
MISSING = (
    "strategy='{}' needs DeepSpeed, which is not installed: DS_BUILD_OPS=0 pip install"
    " --no-build-isolation 'deepspeed>=0.19'"
)
TOO_OLD = (
    "strategy='{}' needs DeepSpeed 0.19 or later, and {} is installed: DS_BUILD_OPS=0 pip install"
    " --no-build-isolation 'deepspeed>=0.19'"
)


def require_deepspeed(strategy: str) -> None:
    """Raise UsageError if DeepSpeed is not installed, or too old. Imports nothing."""
    try:
        found = version("deepspeed")
    except PackageNotFoundError:
        raise UsageError(MISSING.format(strategy)) from None
    if tuple(int(number) for number in found.split("+")[0].split(".")[:2]) < OLDEST:
        raise UsageError(TOO_OLD.format(strategy, found))


STAGES = (0, 1, 2, 3)
AUTO = "auto"
CPU_OFFLOAD = {"device": "cpu"}
NO_FP16 = (
    "fp16 is enabled, by config or by precision='16-true', and DeepSpeed does not support it on"
    " this device ({}): enable bf16 instead"
)
NOT_3 = "config: offload_param needs zero_optimization.stage=3, not {}"


class DeepSpeedConfig:
    """The config: read, validated, and later completed from the loop for each engine.

    ``stage`` is the stage in the strategy's name, or None. ``offload`` is True if the name asks for
    optimizer states (and parameters, at stage 3) in main memory.
    """

    def __init__(self, given: Given, strategy: str, stage: int | None, offload: bool) -> None:
        self._given = read(given)
        self._strategy = strategy
        known.refuse_unknown(self._given)
        known.check(self._given.pop(known.SECTION, None))
        section = self._given.setdefault("zero_optimization", {})
        if not isinstance(section, dict):
            raise UsageError(
                f"config: zero_optimization is {an(type(section).__name__)}; it must be an object"
            )
        known.check_numbers(self._given)
        known.check_objects(self._given, section)
        for name in [name for name in known.OFFLOADS if section.get(name) == AUTO]:
            del section[name]
        self.stage = _stage(section, strategy, stage)
        if offload:
            _add_offload(section, self.stage)
        self.optimizer = OptimizerSection(
            self._given.get("optimizer"), self._is_offloaded("optimizer")
        )
        """The section ``optimizer``, which is compared with the loop's optimizers."""

    @property
    def zero(self) -> dict[str, Any]:
        """The section ``zero_optimization``."""
        section: dict[str, Any] = self._given["zero_optimization"]
        return section

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's tensors."""
        if self._enabled("fp16"):
            return torch.float16
        return torch.bfloat16 if self._enabled("bf16") else torch.float32

    @property
    def is_low_precision(self) -> bool:
        return self.dtype != torch.float32

    @property
    def clip(self) -> float:
        """The norm to clip by if neither loop nor session set one. 0.0 disables clipping."""
        value = self._given.get("gradient_clipping", AUTO)
        return 0.0 if value == AUTO else float(value)

    @property
    def is_offloaded(self) -> bool:
        return self._is_offloaded("optimizer") or self._is_offloaded("param")

    def _is_offloaded(self, what: str) -> bool:
        section = self.zero.get(f"offload_{what}") or {}
        return bool(section.get("device", "none") not in ("none", AUTO))

    def _enabled(self, name: str) -> bool:
        return (self._given.get(name) or {}).get("enabled", False) is True

    def check(self, session: Context) -> None:
        """Raise UsageError if the config contradicts the session, or can't be used here."""
        known.check_keys("zero_optimization", self.zero, _compat.zero_keys())
        for name, keys in _compat.section_keys().items():
            known.check_keys(name, self._given.get(name, self.zero.get(name)), keys)
        _check_clipping(self._given, session.options)
        _check_accumulation(self._given, session.options)
        _check_precision(self._given, session.options)
        fill_precision(self._given, session.options)
        if self.stage == 0 and (self.dtype != torch.float32 or self.is_offloaded):
            raise UsageError(
                "config: zero_optimization.stage=0 divides nothing, so bf16, fp16 and offload have"
                " no effect: use stage 1, 2 or 3"
            )
        if self.dtype == torch.float16 and not _compat.takes_fp16():
            raise UsageError(NO_FP16.format(session.device.type))
        if self.stage == 3 and session.options.get("accumulate_grad_batches", 1) != 1:
            raise UsageError(
                "accumulate_grad_batches at stage 3: parameters are empty outside of forwards, and"
                " take no gradients of a window. Accumulate in the loop (several backward calls"
                " before a step), or use stage 1 or 2"
            )
        if self.stage != 3 and self.zero.get("offload_param"):
            raise UsageError(NOT_3.format(self.stage))
        check_offload(self.zero)

    def check_batch(self, count: int, ranks: int, windows: int) -> None:
        """Raise UsageError for batch sizes that differ from the loop's first batch.

        ``count`` is the number of samples of all ranks in this batch. ``windows`` is the number of
        batches per step.
        """
        sizes = {
            "train_micro_batch_size_per_gpu": (-(-count // ranks), "samples per rank"),
            "train_batch_size": (count * windows, "samples per step"),
        }
        for key, (ours, what) in sizes.items():
            theirs = self._given.get(key, AUTO)
            if theirs not in (AUTO, ours):
                what, remedy = f"the loop has {ours} {what}", "write 'auto', or leave the key out"
                raise UsageError(CONTRADICTION.format(what, key, theirs, remedy))

    def build(self) -> None:
        """Compile the CPU optimizer before the ranks start, so that they do not wait for it.

        Raises UsageError if that fails.
        """
        kernel = self.optimizer.in_main_memory()
        if kernel is not None and self.stage:
            kernel.build()

    def of_engine(self, optimizer: Optimizer, model: Module, session: Context) -> dict[str, Any]:
        """Return DeepSpeed's config for one engine.

        Batch sizes, accumulation and clipping are disabled, because the loop and torchbus do them.
        """
        config = copy.deepcopy(self._given)
        for key in ("optimizer", "train_batch_size"):
            config.pop(key, None)
        zero = config["zero_optimization"]
        sizes = [parameter.numel() for parameter in model.parameters()]
        for key, value in _filled(sizes, self.stage).items():
            if zero.get(key, AUTO) == AUTO:
                zero[key] = value
        drop_auto(config)
        config |= {
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,
            "train_micro_batch_size_per_gpu": 1,
        }
        config.setdefault("zero_allow_untested_optimizer", True)
        config.setdefault("zero_force_ds_cpu_optimizer", False)
        config.setdefault("steps_per_print", None)
        return config

    def describe(self) -> str:
        """Return the facts for ``explain()``."""
        names = {"offload_optimizer": "optimizer states", "offload_param": "parameters"}
        parts = [
            f"{what} in {self.zero[name]['device']} memory"
            for name, what in names.items()
            if (self.zero.get(name) or {}).get("device", "none") != "none"
        ]
        dtype = "" if self.dtype == torch.float32 else f"; model in {str(self.dtype)[6:]}"
        return "".join(f"; {part}" for part in parts) + dtype


def _stage(section: dict[str, Any], strategy: str, stage: int | None) -> int:
    said = section.get("stage", AUTO)
    if stage is not None and said not in (AUTO, stage):
        raise UsageError(
            f"strategy={strategy!r}, and config says zero_optimization.stage={said!r}: leave one"
            " out"
        )
    found = (2 if stage is None else stage) if said == AUTO else said
    if found not in STAGES or isinstance(found, bool):
        raise UsageError(f"config: zero_optimization.stage={found!r}: it must be 0, 1, 2 or 3")
    section["stage"] = found
    return int(found)


def _add_offload(section: dict[str, Any], stage: int) -> None:
    names = ["offload_optimizer"] + (["offload_param"] if stage == 3 else [])
    for name in names:
        if section.get(name, AUTO) == AUTO:
            section[name] = dict(CPU_OFFLOAD)


def _filled(sizes: list[int], stage: int) -> dict[str, Any]:
    """Return bucket sizes limited by the model's size, as DeepSpeed allocates whole buckets."""
    total, largest = max(sum(sizes), 1), max(sizes, default=1)
    found: dict[str, Any] = {"reduce_bucket_size": min(total, 500_000_000)}
    if stage == 3:
        found |= {
            "stage3_prefetch_bucket_size": min(largest, 50_000_000),
            "stage3_param_persistence_threshold": 0,
        }
    return found


def drop_auto(section: dict[str, Any]) -> None:
    """Remove the remaining "auto" values, for which DeepSpeed has defaults."""
    for key in [key for key, value in section.items() if value == AUTO]:
        del section[key]
    for value in section.values():
        if isinstance(value, dict):
            drop_auto(value)


CONTRADICTION = "{}, and config says {}={!r}: {}"
PRECISIONS = {"bf16": ("bf16-true",), "fp16": ("16-true",)}


def _check_clipping(config: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    ours = options.get("gradient_clip_val")
    theirs = config.get("gradient_clipping", AUTO)
    if ours is None or theirs == AUTO:
        return
    if options.get("gradient_clip_algorithm", "norm") != "norm" or float(theirs) != float(ours):
        what = f"gradient_clip_val={ours!r}"
        remedy = "leave gradient_clipping out, or write 'auto'"
        raise UsageError(CONTRADICTION.format(what, "gradient_clipping", theirs, remedy))


def _check_accumulation(config: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    theirs = config.get("gradient_accumulation_steps", AUTO)
    ours = options.get("accumulate_grad_batches", 1)
    if theirs not in (AUTO, ours):
        what = f"accumulate_grad_batches={ours!r}"
        remedy = f"pass accumulate_grad_batches={theirs!r}, or leave the key out"
        raise UsageError(CONTRADICTION.format(what, "gradient_accumulation_steps", theirs, remedy))


def _check_precision(config: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    ours = options.get("precision")
    on = [name for name in PRECISIONS if (config.get(name) or {}).get("enabled") is True]
    if len(on) > 1:
        raise UsageError("config enables both bf16 and fp16: enable one")
    for name, fitting in PRECISIONS.items():
        enabled = (config.get(name) or {}).get("enabled", AUTO)
        if ours in fitting and enabled is False:
            remedy = "write 'auto'"
            what = f"precision={ours!r}"
            raise UsageError(CONTRADICTION.format(what, f"{name}.enabled", enabled, remedy))
        if name in on and ours is not None and ours not in fitting:
            what = f"precision={ours!r}"
            remedy = f"leave precision out, or use {fitting[0]!r}"
            raise UsageError(CONTRADICTION.format(what, f"{name}.enabled", True, remedy))
    if ours == "16-mixed":
        raise UsageError(
            "precision='16-mixed' under DeepSpeed: its loss scaling reads p.grad, which is None."
            " Use config={'fp16': {'enabled': True}}, or precision='bf16-mixed'"
        )


def fill_precision(config: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Enable fp16 or bf16 in the config if the session's precision converts the model."""
    for name, fitting in PRECISIONS.items():
        if options.get("precision") in fitting:
            config[name] = {**(config.get(name) or {}), "enabled": True}


NO_AIO = (
    "config: {}.device='nvme' needs DeepSpeed's async_io, which can't be built here: install libaio"
    " (libaio-dev, libaio-devel), or use device 'cpu'; `ds_report` says what is missing"
)
NO_PATH = "config: {}.device='nvme' needs {}.nvme_path, a folder on the NVMe disk"


def check_offload(zero: Mapping[str, Any]) -> None:
    """Raise UsageError if NVMe offload is configured but not available."""
    for name in known.OFFLOADS:
        section = zero.get(name) or {}
        if section.get("device") != "nvme":
            continue
        if not section.get("nvme_path"):
            raise UsageError(NO_PATH.format(name, name))
        if not _compat.has_async_io():
            raise UsageError(NO_AIO.format(name))
