"""The section ``optimizer`` names the loop's own optimizer, or one of DeepSpeed's in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.optim import AdamW, Optimizer
from torchbus.plugin import UsageError, hookimpl

from torchbus_deepspeed.optimizers import kernels
from torchbus_deepspeed.optimizers.kernels import Kernel
from torchbus_deepspeed.optimizers.trial import refuse_unlike

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
OTHER_CLASS = (
    "the loop makes {}, and config says optimizer.type={!r}: leave the section out, or make that"
    " optimizer in the loop (deepspeed.ops.adam.FusedAdam, for example)"
)
OTHER_DECAY = (
    "the loop's {} has weight_decay={!r} {}, and config's optimizer.type={!r} with adam_w_mode={}"
    " has it {}: make the other class in the loop, or write adam_w_mode={} with the type 'Adam'"
)
DECAYS = {True: "beside the gradient (AdamW)", False: "in the gradient (Adam)"}
MISPLACED = (
    "optimizer.type={!r}: DeepSpeed's {} steps what is {}, and offload_optimizer is {}. Write {!r},"
    " which means the fitting one"
)
KINDS: dict[str, tuple[Kernel | None, Kernel]] = {
    "adam": (kernels.FUSED_ADAM, kernels.CPU_ADAM),
    "adamw": (kernels.FUSED_ADAM, kernels.CPU_ADAM),
    "adagrad": (None, kernels.CPU_ADAGRAD),
    "lion": (kernels.FUSED_LION, kernels.CPU_LION),
}
"""What DeepSpeed makes of a type, without offload and with it. None: torch's own."""
NAMED = {name.lower(): kernel for name, kernel in kernels.ALL.items()}
OF_KERNELS = ("torch_adam", "adam_w_mode", "fp32_optimizer_states", "foreach", "set_grad_none")
"""Parameters of a type that are no hyperparameters of a group."""
GIVEN = {"bias_correction": True}
"""What torch's classes do, and don't name."""
ADAMW = "adamw"


class Choice:
    """What a section says. ``is_offloaded``: so are optimizer states."""

    def __init__(self, section: Mapping[str, Any] | None, is_offloaded: bool) -> None:
        self._section = section or {}
        self._kind = str(self._section.get("type", AUTO))
        self._given: Mapping[str, Any] = self._section.get("params") or {}
        self._is_offloaded = is_offloaded
        refuse_compressed(self._kind)

    def of(self, optimizer: Optimizer, device: torch.device) -> Kernel | None:
        """The kernel that steps in place of the loop's optimizer; None: its own class does.

        Raises UsageError if the section contradicts the optimizer.
        """
        self.check(optimizer)
        own = kernels.of_loop(optimizer)
        if own is None and (kernel := self.meant(device)) is not None:
            chosen = replace(kernel, arguments=self._arguments(kernel, optimizer))
            refuse_unlike(chosen, optimizer, self._kind, device)
            return chosen
        if own is not None:
            self._refuse_misplaced(own, device)
        return own

    def meant(self, device: torch.device) -> Kernel | None:
        """The kernel that the type names, whatever the loop makes.

        On a CPU without offload, a type such as "AdamW" leaves the loop's own class, whose numbers
        are the same, and needs no compiler.
        """
        kind = self._kind.lower()
        if kind in NAMED:
            self._refuse_misplaced(NAMED[kind], device)
            return NAMED[kind]
        if kind not in KINDS or self._given.get("torch_adam") is True:
            return None
        fused, of_cpu = KINDS[kind]
        return of_cpu if self._is_offloaded else None if device.type == "cpu" else fused

    @hookimpl
    def optimizer_ready(self, optimizer: Optimizer) -> None:
        """At stage 0 the loop's own steps, and the section must not say otherwise."""
        self.check(optimizer)

    def in_main_memory(self) -> Kernel | None:
        """The kernel that the section means with offload, known before there is a device."""
        found = self.meant(torch.device("cpu")) if self._is_offloaded else None
        return found if found is not None and found.in_main_memory else None

    def check(self, optimizer: Optimizer) -> None:
        """Raise UsageError for a class, weight decay or number that is not the loop's."""
        own, kind = type(optimizer).__name__, self._kind.lower()
        if kind != AUTO and _family(kind) != _family(own.lower()):
            raise UsageError(OTHER_CLASS.format(own, self._kind))
        for name, theirs in self._given.items():
            for group in optimizer.param_groups if name not in OF_KERNELS else ():
                ours = group.get(name, GIVEN.get(name))
                if theirs != AUTO and _plain(ours) != _plain(theirs):
                    raise UsageError(UNLIKE.format(own, name, ours, name, theirs))
        if _family(kind) == "adam":
            self._check_decay(optimizer)

    def _check_decay(self, optimizer: Optimizer) -> None:
        """In DeepSpeed, "Adam" means AdamW, unless ``adam_w_mode`` is false."""
        ours = _is_decoupled(optimizer)
        theirs = self._is_adamw(ours)
        decays = [group["weight_decay"] for group in optimizer.param_groups]
        if ours != theirs and any(decays):
            words = type(optimizer).__name__, max(decays), DECAYS[ours], self._kind, theirs
            raise UsageError(OTHER_DECAY.format(*words, DECAYS[theirs], ours))

    def _is_adamw(self, ours: bool) -> bool:
        kind = self._kind.lower()
        return kind == ADAMW or self._given.get("adam_w_mode", kind == "adam" or ours) is not False

    def _arguments(self, kernel: Kernel, optimizer: Optimizer) -> dict[str, object]:
        found: dict[str, object] = {}
        if kernel.mode:
            found[kernel.mode] = _is_decoupled(optimizer)
        if kernel.in_main_memory and self._given.get("fp32_optimizer_states", AUTO) != AUTO:
            found["fp32_optimizer_states"] = self._given["fp32_optimizer_states"]
        return found

    def _refuse_misplaced(self, kernel: Kernel, device: torch.device) -> None:
        kind = _family(kernel.name.lower())
        if device.type == "cpu":
            if not kernel.on_cpu:
                raise UsageError(kernels.NOT_HERE.format(self._kind, kernel.name, kind))
        elif kernel.in_main_memory != self._is_offloaded:
            place = "in main memory" if kernel.in_main_memory else "on the model's device"
            given = "on" if self._is_offloaded else "off"
            raise UsageError(MISPLACED.format(self._kind, kernel.name, place, given, kind))


def refuse_compressed(kind: str) -> None:
    """Raise UsageError for 1-bit optimizers."""
    if kind.lower() in COMPRESSED:
        raise UsageError(GONE.format(kind))


def _family(kind: str) -> str:
    """Types and classes that step alike, but for weight decay, by one name."""
    for name in ("adagrad", "lion", "adam"):
        if kind in (name, f"deepspeedcpu{name}", f"fused{name}"):
            return name
    return "adam" if kind == ADAMW else kind


def _is_decoupled(optimizer: Optimizer) -> bool:
    """Whether weights decay beside the gradient, as in AdamW."""
    own = kernels.of_loop(optimizer)
    if own is not None and own.mode:
        return bool(own.arguments[own.mode])
    told = any(group.get("decoupled_weight_decay") for group in optimizer.param_groups)
    return told or isinstance(optimizer, AdamW) or type(optimizer).__name__ == "AdamW"


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
