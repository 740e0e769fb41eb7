"""DeepSpeed's optimizers, fused or for CPUs, which replace the loop's step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torchbus.plugin import UsageError, hookimpl

from torchbus_deepspeed import _compat
from torchbus_deepspeed.shadow import groups_with, shadow_of, unhook
from torchbus_strategy.internal import making_internal

TOGETHER = (
    "strategy='{}' with {}: its step is not elementwise, and a rank has only a flat part of a"
    " parameter. Use an elementwise optimizer (AdamW, SGD), strategy='ddp', or"
    " zero_optimization.stage=0"
)
KNOWN = (
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "AdamW",
    "ASGD",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
)
"""Classes of torch.optim with an elementwise step."""


def refuse_unless_by_element(optimizer: Optimizer, strategy: str) -> None:
    """Raise UsageError for an optimizer whose result would differ in flat shards.

    A class that is not one of torch's is tried: it makes two small steps on two tensors, and the
    same steps on all their elements in two flat parts.
    """
    cls = type(optimizer)
    if cls.__module__.startswith("torch.optim.") and cls.__name__ in KNOWN:
        return
    if of_loop(optimizer) is not None:
        return
    if not _steps_by_element(optimizer):
        raise UsageError(TOGETHER.format(strategy, cls.__name__))


def _steps_by_element(optimizer: Optimizer) -> bool:
    start, gradients = tensors(), made()
    try:
        whole = _stepped(optimizer, start, gradients)
        parts = _stepped(optimizer, _parts(start), [_parts(each) for each in gradients])
    except Exception:  # an unknown class may raise anything
        return False
    return alike(_parts(whole), parts)


def _stepped(
    optimizer: Optimizer, start: list[Tensor], gradients: list[list[Tensor]]
) -> list[Tensor]:
    return stepped(shadow_of(optimizer, set()), {}, start, gradients)


def _parts(tensors: list[Tensor]) -> list[Tensor]:
    """Return all elements in two flat parts. The border lies inside a tensor."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return [flat[:7].clone(), flat[7:].clone()]


AUTO = "auto"
COMPRESSED = ("onebitadam", "zerooneadam", "onebitlamb")
REMOVED = (
    "config: optimizer.type={!r} was removed from DeepSpeed: 0.19.6 was the last release with it."
    " To send less, use strategy='ddp' with gradient_algorithm= (torchbus-compress)"
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
    " with which DeepSpeed's class follows offload_optimizer"
)


@dataclass(frozen=True)
class Kernel:
    """One optimizer of DeepSpeed.

    ``takes`` are the hyperparameters that it reads from a group. ``mode`` is its argument for
    decoupled weight decay (AdamW) instead of decay by the gradient (Adam). ``names`` has torch's
    names of its states by DeepSpeed's names. ``in_main_memory`` is True if it steps tensors there.
    """

    name: str
    module: str
    takes: tuple[str, ...]
    in_main_memory: bool
    mode: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    has_count: bool = True
    """Whether the state in the loop's layout has a count of steps."""
    on_cpu: bool = True
    """Whether it has code for a CPU."""
    unused: tuple[str, ...] = ()
    """The states that it stores but never reads."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    is_loops: bool = False
    """Whether the loop's optimizer is of this class."""

    def shadow_of(self, optimizer: Optimizer, parameters: set[int]) -> Optimizer:
        """Return an optimizer of this kernel for DeepSpeed to hold, like ``shadow.shadow_of``."""
        keys = ("params", *self.takes)
        groups = [group.items() for group in groups_with(optimizer, parameters)]
        return self.made([{key: one for key, one in group if key in keys} for group in groups])

    def made(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Make the optimizer. Raises UsageError if its operator can't be built or loaded."""
        try:
            with making_internal(), _compat.quiet():
                made: Optimizer = _compat.optimizer_class(self.module, self.name)(
                    groups, **self.arguments
                )
        except Exception as error:  # compilers, loaders and devices raise many kinds of errors
            cause = str(error.__cause__ or error).splitlines() or [type(error).__name__]
            raise UsageError(UNBUILT.format(self.name, cause[0].rstrip("."))) from error
        unhook(made)
        return made

    def build(self) -> None:
        """Compile and load the operator. Ranks that are forked later inherit it."""
        self.made([{"params": [nn.Parameter(torch.zeros(1))]}])

    # States --------------------------------------------------------------------------------------

    def outward(self, entry: Mapping[str, Any]) -> Entry:
        """Convert the state of one parameter to the layout of the loop's class."""
        if self.is_loops:
            return dict(entry)
        found = {
            self.names.get(name, name): value
            for name, value in entry.items()
            if name not in self.unused
        }
        count = found.pop(STEP, None)
        if count is not None and self.has_count:
            found[STEP] = torch.tensor(float(count))
        return found

    def inward(self, entry: Mapping[str, Any]) -> Entry:
        """Convert the state of one parameter to DeepSpeed's layout."""
        if self.is_loops or not entry:
            return dict(entry)
        names = {theirs: mine for mine, theirs in self.names.items()}
        found = {names.get(name, name): value for name, value in entry.items()}
        count = found.get(STEP, 0)
        return found | {STEP: int(count.item() if isinstance(count, Tensor) else count)}


CPU_ADAGRAD = Kernel(
    "DeepSpeedCPUAdagrad",
    "deepspeed.ops.adagrad",
    ("lr", "eps", "weight_decay"),
    True,
    names={"exp_avg_sq": "sum"},
)
ADAM = ("lr", "betas", "eps", "weight_decay", "bias_correction")
CPU_ADAM = Kernel("DeepSpeedCPUAdam", "deepspeed.ops.adam", ADAM, True, "adamw_mode")
LION = ("lr", "betas", "weight_decay")
CPU_LION = Kernel(
    "DeepSpeedCPULion",
    "deepspeed.ops.lion",
    LION,
    True,
    has_count=False,
    unused=("exp_avg_sq",),
)
FUSED_ADAM = Kernel("FusedAdam", "deepspeed.ops.adam", ADAM, False, "adam_w_mode")
FUSED_LION = Kernel("FusedLion", "deepspeed.ops.lion", LION, False, has_count=False, on_cpu=False)


KINDS: dict[str, tuple[Kernel | None, Kernel]] = {
    "adam": (FUSED_ADAM, CPU_ADAM),
    "adamw": (FUSED_ADAM, CPU_ADAM),
    "adagrad": (None, CPU_ADAGRAD),
    "lion": (FUSED_LION, CPU_LION),
}
"""The kernels that DeepSpeed uses for a type, without and with offload. None means torch's class.
"""


ALL = {kernel.name: kernel for kernel in (CPU_ADAM, FUSED_ADAM, CPU_ADAGRAD, CPU_LION, FUSED_LION)}


NAMED = {name.lower(): kernel for name, kernel in ALL.items()}
OF_KERNELS = ("torch_adam", "adam_w_mode", "fp32_optimizer_states", "foreach", "set_grad_none")
"""Entries of ``optimizer.params`` that are not hyperparameters of a group."""
GIVEN = {"bias_correction": True}
"""The values of hyperparameters that torch's classes do not have as an option."""
ADAMW = "adamw"


class OptimizerSection:
    """The section ``optimizer``. ``is_offloaded`` is True if optimizer states are offloaded."""

    def __init__(self, section: Mapping[str, Any] | None, is_offloaded: bool) -> None:
        self._section = section or {}
        self._kind = str(self._section.get("type", AUTO))
        self._given: Mapping[str, Any] = self._section.get("params") or {}
        self._is_offloaded = is_offloaded
        if self._kind.lower() in COMPRESSED:
            raise UsageError(REMOVED.format(self._kind))

    def of(self, optimizer: Optimizer, device: torch.device) -> Kernel | None:
        """Return the kernel that replaces the loop's step, or None if the loop's class steps.

        Raises UsageError if the section contradicts the optimizer.
        """
        self.check(optimizer)
        mine = of_loop(optimizer)
        if mine is None and (kernel := self.meant(device)) is not None:
            chosen = replace(kernel, arguments=self._arguments(kernel, optimizer))
            refuse_unlike(chosen, optimizer, self._kind, device)
            return chosen
        if mine is not None:
            self._refuse_misplaced(mine, device)
        return mine

    def meant(self, device: torch.device) -> Kernel | None:
        """Return the kernel of the section's type, independent of the loop's optimizer.

        Returns None if the loop's class steps. On a CPU without offload, that is so for a type such
        as "AdamW", as torch's class gives the same numbers and needs no compiler.
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
        """Raise UsageError if the section contradicts the loop's optimizer (stage 0)."""
        self.check(optimizer)

    def in_main_memory(self) -> Kernel | None:
        """Return the kernel for offload, which does not depend on the device, or None."""
        found = self.meant(torch.device("cpu")) if self._is_offloaded else None
        return found if found is not None and found.in_main_memory else None

    def check(self, optimizer: Optimizer) -> None:
        """Raise UsageError if class, weight decay or a hyperparameter differs from the loop's."""
        mine, kind = type(optimizer).__name__, self._kind.lower()
        if kind != AUTO and _family(kind) != _family(mine.lower()):
            raise UsageError(OTHER_CLASS.format(mine, self._kind))
        for name, theirs in self._given.items():
            for group in optimizer.param_groups if name not in OF_KERNELS else ():
                ours = group.get(name, GIVEN.get(name))
                if theirs != AUTO and _plain(ours) != _plain(theirs):
                    raise UsageError(UNLIKE.format(mine, name, ours, name, theirs))
        if _family(kind) == "adam":
            self._check_decay(optimizer)

    def _check_decay(self, optimizer: Optimizer) -> None:
        """Raise UsageError if the kinds of weight decay differ.

        In DeepSpeed, "Adam" means AdamW, unless ``adam_w_mode`` is false.
        """
        ours = _is_decoupled(optimizer)
        theirs = self._is_adamw(ours)
        decays = [group["weight_decay"] for group in optimizer.param_groups]
        if ours != theirs and any(decays):
            facts = type(optimizer).__name__, max(decays), DECAYS[ours], self._kind, theirs
            raise UsageError(OTHER_DECAY.format(*facts, DECAYS[theirs], ours))

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
                raise UsageError(NOT_HERE.format(self._kind, kernel.name, kind))
        elif kernel.in_main_memory != self._is_offloaded:
            place = "in main memory" if kernel.in_main_memory else "on the model's device"
            given = "on" if self._is_offloaded else "off"
            raise UsageError(MISPLACED.format(self._kind, kernel.name, place, given, kind))


def _family(kind: str) -> str:
    """Return one name for types and classes with the same step except for weight decay."""
    for name in ("adagrad", "lion", "adam"):
        if kind in (name, f"deepspeedcpu{name}", f"fused{name}"):
            return name
    return "adam" if kind == ADAMW else kind


def _is_decoupled(optimizer: Optimizer) -> bool:
    """Whether weight decay is decoupled, as in AdamW."""
    mine = of_loop(optimizer)
    if mine is not None and mine.mode:
        return bool(mine.arguments[mine.mode])
    reported = any(group.get("decoupled_weight_decay") for group in optimizer.param_groups)
    return reported or isinstance(optimizer, AdamW) or type(optimizer).__name__ == "AdamW"


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


OTHERWISE = (
    "config: optimizer.type={!r} means DeepSpeed's {}, whose step differs from that of the loop's"
    " {}{}: leave the section out, or give the loop's optimizer the options of {}"
)
FREE = ("params", "foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay")
"""Options of a group that do not change the numbers, or that are compared separately."""
SHAPES = ((3, 4), (5,))
LR = 0.1


def refuse_unlike(kernel: Kernel, optimizer: Optimizer, kind: str, device: torch.device) -> None:
    """Raise UsageError if the kernel would step a group of the loop's optimizer differently."""
    for group in optimizer.param_groups:
        asked = [
            f"{name}={value!r}"
            for name, value in group.items()
            if value and name in optimizer.defaults and name not in (*FREE, *kernel.takes)
        ]
        if asked or not _step_alike(kernel, optimizer, group, device):
            mine, facts = type(optimizer).__name__, f" with {', '.join(asked)}" if asked else ""
            raise UsageError(OTHERWISE.format(kind, kernel.name, mine, facts, kernel.name))


def _step_alike(
    kernel: Kernel, optimizer: Optimizer, group: dict[str, object], device: torch.device
) -> bool:
    hyperparameters = {name: value for name, value in group.items() if name != "params"}
    copies = shadow_of(optimizer, set()), kernel.shadow_of(optimizer, set())
    one, other = (
        stepped(shadow, hyperparameters | {"lr": LR}, tensors(device), made(device))
        for shadow in copies
    )
    return alike(one, other)


def tensors(device: torch.device | str = "cpu", seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device) for shape in SHAPES]


def made(device: torch.device | str = "cpu") -> list[list[Tensor]]:
    """Return the gradients of two steps."""
    return [tensors(device, seed) for seed in (1, 2)]


def stepped(
    shadow: Optimizer,
    hyperparameters: dict[str, object],
    start: Sequence[Tensor],
    gradients: Sequence[Sequence[Tensor]],
) -> list[Tensor]:
    """Return the tensors, in their shapes, after the steps of an optimizer that holds only them."""
    parameters = [tensor.clone().requires_grad_() for tensor in start]
    known = shadow.param_groups[0] if shadow.param_groups else {}
    shadow.param_groups = [{**known, **hyperparameters, "params": parameters}]
    for each in gradients:
        for parameter, gradient in zip(parameters, each, strict=True):
            parameter.grad = gradient.clone()
        shadow.step()
    return [parameter.detach() for parameter in parameters]


def alike(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in pairs)


UNBUILT = (
    "DeepSpeed's {}, which config or the loop asks for, can't be built or loaded here: {}. Install"
    " a C++ compiler and ninja, or leave optimizer out of the config: the loop's own class steps"
    " then"
)
NOT_HERE = (
    "optimizer.type={!r}: DeepSpeed's {} has no code for a CPU. Write {!r} and turn on"
    " offload_optimizer, or remove optimizer from the config: the loop's own class steps then"
)
Entry = dict[str, Any]
STEP = "step"
MODES = "adam_w_mode"
"""The attribute of DeepSpeed's Adam classes that selects AdamW."""


def of_loop(optimizer: Optimizer) -> Kernel | None:
    """Return the kernel for a DeepSpeed optimizer that the loop has made, or None for others."""
    cls = type(optimizer)
    kernel = ALL.get(cls.__name__)
    if kernel is None or not cls.__module__.startswith("deepspeed.ops."):
        return None
    mode = {kernel.mode: bool(getattr(optimizer, MODES))} if kernel.mode else {}
    return replace(kernel, arguments=mode, is_loops=True)
