"""The optimizers that DeepSpeed brings, and how their states are called in torch's layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torchbus.patches.patching import making_internal
from torchbus.plugin import UsageError

from torchbus_deepspeed._compat import package
from torchbus_deepspeed.engine.shadow import groups_with, unhook

UNBUILT = (
    "DeepSpeed's {}, which config or the loop asks for, can't be built or loaded here: {}. Install"
    " a C++ compiler and ninja, or leave optimizer out of the config: the loop's own class steps"
    " then"
)
NOT_HERE = (
    "optimizer.type={!r}: DeepSpeed's {} has no code for a CPU. With offload_optimizer, {!r} means"
    " the one for CPUs; without it, the loop's own class steps"
)
Entry = dict[str, Any]
STEP = "step"


@dataclass(frozen=True)
class Kernel:
    """One of them.

    ``takes``: the hyperparameters of a group that it reads. ``mode``: its argument that says
    whether weights decay by themselves (AdamW), not with the gradient (Adam). ``names``: torch's
    names of what it calls otherwise. ``in_main_memory``: there is what it steps.
    """

    name: str
    module: str
    takes: tuple[str, ...]
    in_main_memory: bool
    mode: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    has_count: bool = True
    """In the loop's layout the state has a count of steps."""
    on_cpu: bool = True
    """It has code for a CPU."""
    unused: tuple[str, ...] = ()
    """What it keeps, and never reads."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    is_loops: bool = False
    """The loop's own optimizer is of this class."""

    def shadow_of(self, optimizer: Optimizer, parameters: set[int]) -> Optimizer:
        """One for DeepSpeed to hold, as ``engine.shadow.shadow_of`` makes of the loop's class."""
        kept = ("params", *self.takes)
        return self.made(
            [
                {name: value for name, value in group.items() if name in kept}
                for group in groups_with(optimizer, parameters)
            ]
        )

    def made(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Raises UsageError if its operator can't be built or loaded."""
        try:
            with making_internal(), package.quiet():
                made: Optimizer = package.optimizer_class(self.module, self.name)(
                    groups, **self.arguments
                )
        except Exception as error:  # of compilers, loaders and devices
            cause = str(error.__cause__ or error).splitlines() or [type(error).__name__]
            raise UsageError(UNBUILT.format(self.name, cause[0].rstrip("."))) from error
        unhook(made)
        return made

    def build(self) -> None:
        """Compile and load its operator: ranks that are forked later have it."""
        self.made([{"params": [nn.Parameter(torch.zeros(1))]}])

    # States --------------------------------------------------------------------------------------

    def outward(self, entry: Mapping[str, Any]) -> Entry:
        """The state of one parameter, as the loop's class keeps it."""
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
        """The same in the other direction."""
        if self.is_loops or not entry:
            return dict(entry)
        names = {theirs: own for own, theirs in self.names.items()}
        found = {names.get(name, name): value for name, value in entry.items()}
        count = found.get(STEP, 0)
        return found | {STEP: int(count.item() if isinstance(count, Tensor) else count)}


ADAM = ("lr", "betas", "eps", "weight_decay", "bias_correction")
CPU_ADAM = Kernel("DeepSpeedCPUAdam", "deepspeed.ops.adam", ADAM, True, "adamw_mode")
FUSED_ADAM = Kernel("FusedAdam", "deepspeed.ops.adam", ADAM, False, "adam_w_mode")
CPU_ADAGRAD = Kernel(
    "DeepSpeedCPUAdagrad",
    "deepspeed.ops.adagrad",
    ("lr", "eps", "weight_decay"),
    True,
    names={"exp_avg_sq": "sum"},
)
LION = ("lr", "betas", "weight_decay")
CPU_LION = Kernel(
    "DeepSpeedCPULion",
    "deepspeed.ops.lion",
    LION,
    True,
    has_count=False,
    unused=("exp_avg_sq",),
)
FUSED_LION = Kernel("FusedLion", "deepspeed.ops.lion", LION, False, has_count=False, on_cpu=False)
ALL = {kernel.name: kernel for kernel in (CPU_ADAM, FUSED_ADAM, CPU_ADAGRAD, CPU_LION, FUSED_LION)}
MODES = "adam_w_mode"
"""An attribute of DeepSpeed's Adams."""


def of_loop(optimizer: Optimizer) -> Kernel | None:
    """The kernel that the loop itself has made."""
    cls = type(optimizer)
    kernel = ALL.get(cls.__name__)
    if kernel is None or not cls.__module__.startswith("deepspeed.ops."):
        return None
    mode = {kernel.mode: bool(getattr(optimizer, MODES))} if kernel.mode else {}
    return replace(kernel, arguments=mode, is_loops=True)
