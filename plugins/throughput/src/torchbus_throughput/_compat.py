"""Private names of torch that this package uses. They were seen in 2.6 to 2.13."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils import flop_counter
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.flop_counter import FlopCounterMode

KNOWN_NAMESPACES = (
    "aten",
    "prim",
    "prims",
    "c10d",
    "_c10d_functional",
    "inductor",
    "profiler",
    "fsdp",
)
"""Namespaces of torch's own operations. Those without a formula multiply no matrices. Without one
of them: its operations are named as unknown.
"""
ON_CPU = {
    "_scaled_dot_product_flash_attention_for_cpu": flop_counter.sdpa_flop,
    "_scaled_dot_product_flash_attention_for_cpu_backward": flop_counter.sdpa_backward_flop,
}
"""Formulas that FlopCounterMode lacks. Without these names: attention on a CPU counts as 0."""


class _Everywhere:
    """Replaces FlopCounterMode's ModuleTracker, whose hooks would run in a compiled model.

    Then all operations count for "Global".
    """

    parents = ("Global",)

    def __enter__(self) -> _Everywhere:
        return self

    def __exit__(self, *_: object) -> None: ...


class CountedOps(FlopCounterMode):
    """Counts floating-point operations, by dtype and in all, and never raises.

    ``by_dtype``: of the first tensor of each operation. ``unknown``: operations of other packages
    that have no formula, and how often they ran. Without ``_count_flops``: all counts are 0.
    """

    def __init__(self) -> None:
        super().__init__(display=False)
        self.mod_tracker = _Everywhere()  # type: ignore[assignment]
        self.by_dtype: Counter[torch.dtype] = Counter()
        self.unknown: Counter[str] = Counter()

    def begin(self) -> None:
        """Count from now on, in this thread."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Count no longer. It must be the innermost mode."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @property
    def total(self) -> int:
        return sum(self.by_dtype.values())

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        try:
            space, _, name = str(func_packet).partition(".")
            formula: Any = self.flop_registry.get(func_packet) or ON_CPU.get(name)
            if formula is not None:
                first = next(one for one in args if isinstance(one, Tensor))
                self.by_dtype[first.dtype] += formula(*args, **kwargs, out_val=out)
            elif space not in KNOWN_NAMESPACES:
                self.unknown[f"{space}::{name}"] += 1
        except Exception:  # a shape that the formula does not expect
            self.unknown[str(func_packet).replace(".", "::", 1)] += 1
        return out


def is_free() -> bool:
    """Whether no mode is on: one that is would end with ours.

    Without ``_get_current_dispatch_mode``: ImportError when the plugin is imported.
    """
    return _get_current_dispatch_mode() is None


def is_innermost(counter: CountedOps) -> bool:
    """Whether the counter can end: no other mode was begun inside it.

    Without ``_get_current_dispatch_mode``: ImportError when the plugin is imported.
    """
    current: Any = _get_current_dispatch_mode()
    return current is counter or getattr(current, "counter", None) is counter


def is_compiled(module: Module) -> bool:
    """Whether its calls are compiled.

    Without ``_compiled_call_impl``: a module that compiles its own call counts as not compiled.
    """
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")


def compiled_from(module: Module) -> Module:
    """Return what ``torch.compile`` has wrapped, or the module itself.

    Without ``_orig_mod``: the parts of a compiled model are not shown.
    """
    return getattr(module, "_orig_mod", module)


def compiled_graphs() -> int:
    """How many graphs torch.compile has made in this process.

    Without ``torch._dynamo.utils``: compiled functions count as not compiled.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    counters: Any = getattr(utils, "counters", {})
    return int(counters["stats"].get("unique_graphs", 0)) if counters else 0
