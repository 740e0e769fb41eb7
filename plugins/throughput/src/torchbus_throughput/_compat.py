"""Private names of torch that this package uses. They were seen in 2.4 to 2.13."""

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

OWN = ("aten", "prim", "prims", "c10d", "_c10d_functional", "inductor", "profiler", "fsdp")
"""Namespaces of torch's own operations. Those without a formula multiply no matrices."""
ON_CPU = "_scaled_dot_product_flash_attention_for_cpu"


class _Everywhere:
    """Takes the place of FlopCounterMode's ModuleTracker, whose hooks a compiled model would meet.

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
        super().__init__(display=False, custom_mapping=_attention_on_cpu())
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
            formula = self.flop_registry.get(func_packet)
            if formula is not None:
                first = next(one for one in args if isinstance(one, Tensor))
                self.by_dtype[first.dtype] += formula(*args, **kwargs, out_val=out)
            elif (name := str(func_packet)).partition(".")[0] not in OWN:
                self.unknown[name.replace(".", "::", 1)] += 1
        except Exception:  # a shape that the formula does not expect
            self.unknown[str(func_packet).replace(".", "::", 1)] += 1
        return out


def _attention_on_cpu() -> dict[Any, Any]:
    """Formulas that FlopCounterMode lacks: of attention on a CPU.

    Without ``_scaled_dot_product_flash_attention_for_cpu``: this attention counts as 0.
    """
    formulas = {
        ON_CPU: flop_counter.sdpa_flop,
        f"{ON_CPU}_backward": flop_counter.sdpa_backward_flop,
    }
    packets = {getattr(torch.ops.aten, name, None): one for name, one in formulas.items()}
    # the functions are wrapped already, and take shapes
    return {
        packet: _of_shapes(one)
        for packet, one in packets.items()
        if packet is not None and packet not in flop_counter.flop_registry
    }


def _of_shapes(wrapped: Any) -> Any:
    """Let FlopCounterMode call a formula as it is, with tensors."""

    def formula(*args: Any, **kwargs: Any) -> int:
        return int(wrapped(*args, **kwargs))

    formula._get_raw = True  # type: ignore[attr-defined]
    return formula


def is_free() -> bool:
    """Whether no mode is on: one that is would end with ours."""
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


def has_compiled() -> bool:
    """Whether torch.compile has compiled something in this process.

    Without ``torch._dynamo.utils``: compiled functions count as not compiled.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    counters: Any = getattr(utils, "counters", {})
    return bool(counters and counters["stats"].get("unique_graphs"))
