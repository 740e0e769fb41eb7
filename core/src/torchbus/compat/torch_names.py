"""Private names of torch that the patches need.

All were seen in torch 2.6 to 2.13.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, _guards
from torch._functorch import pyfunctorch
from torch.nn import Module
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from torchbus.compat.required import absent, private, require

current_graph_task_id: Callable[[], int] = private(
    torch._C, "_current_graph_task_id", "distinguishes a nested backward from the loop's"
)
"""Seen in 2.6 to 2.13. Without it: UsageError at the first backward."""
graph_nodes_built: Callable[[], int] = private(
    torch.autograd, "_get_sequence_nr", "shows whether the loop may have made a step"
)
"""Counts this thread's nodes of graphs. Seen in 2.6 to 2.13. Without it: UsageError at the start of
a block."""
version: Callable[[Tensor], int] = attrgetter("_version")
"""Grows with each change in place. Seen in 2.6 to 2.13. Without it: AttributeError in backward."""


def outside_transforms() -> AbstractContextManager[object]:
    """Compute as if no transform of ``torch.func`` ran: a collective can't be transformed.

    Without ``temporarily_clear_interpreter_stack``: UsageError at a first call in a transform. Seen
    in 2.6 to 2.13.
    """
    return nullcontext() if maybe_current_level() is None else clear_transforms()


maybe_current_level: Callable[[], int | None] = private(
    torch._C._functorch, "maybe_current_level", "detects whether a transform of torch.func runs"
)
"""Seen in 2.6 to 2.13. Without it: UsageError at a model's first call."""
clear_transforms = private(
    pyfunctorch, "temporarily_clear_interpreter_stack", "allows collectives inside a transform"
)
children: Callable[[Module], dict[str, Module | None]] = attrgetter("_modules")
"""A module's children by name. Without it: AttributeError when models are looked for."""
detect_fake_mode: Callable[[], object] = _guards.detect_fake_mode
"""The mode in which torch traces a model, None outside. Without it: AttributeError at
``import torchbus``.
"""
CALL: CodeType = Module._wrapped_call_impl.__code__
"""The code that calls a module's forward. Without it: AttributeError at ``import torchbus``."""
COMPILER = "torch._dynamo.eval_frame"
"""The compiler's module, loaded at first use. Without it: ImportError at ``torch.compile``."""


def compiler() -> tuple[list[Any], type[Module]]:
    """Return the callbacks that torch's compiler calls at its start, and the class of its models.

    Loading it takes a second. Without either: AttributeError at the first ``torch.compile``.
    """
    import torch._dynamo as dynamo
    from torch._dynamo.eval_frame import OptimizedModule

    return dynamo.callback.callback_handler.start_callbacks, OptimizedModule


def forget_replaced() -> None:
    """Reset the compiler's cache of torch's functions.

    The cache stores functions permanently as it first saw them. Some are patched by a session, so
    the cache also keeps alive everything that the patches reference.

    Without ``trace_rules`` or ``clear_lru_cache``: nothing is reset.
    """
    rules = sys.modules.get("torch._dynamo.trace_rules")
    getattr(rules, "clear_lru_cache", lambda: None)()


PATCH_STEP = "_patch_step_function"
"""The method by which a new optimizer gives its class's ``step`` torch's hooks.

Without it: AttributeError when the patch is installed.
"""


def is_hooked(step: object) -> bool:
    """Whether ``step`` has torch's hooks. Without ``hooked``: see ``require_hooked``."""
    return getattr(step, "hooked", False) is True


def require_hooked(kind: type[Optimizer]) -> None:
    """Raise UsageError where a new optimizer's ``step`` does not say that it is hooked."""
    require(kind.step, "hooked", "lets a session skip a step of an optimizer")


def has_begun(scheduler: LRScheduler) -> bool:
    """Whether its constructor has stepped. Without ``_step_count``: see ``require_step_count``."""
    mine = vars(scheduler)  # SequentialLR counts no steps, and makes none in its constructor
    return mine.get("_step_count", 0) > 0 or "best" in mine or "_schedulers" in mine


def require_step_count() -> None:
    """Raise UsageError where schedulers do not count their steps."""
    require(LRScheduler, "_step_count", "lets a session skip a scheduler's step")


def cells_of_local_step(optimizer: Optimizer) -> Iterator[CellType]:
    """Yield the closure cells of a scheduler's wrapper of ``step``; one holds the class's function.

    Without the closure: UsageError when the patch is installed.
    """
    step = vars(optimizer).get("step")
    cells = [cell for cell in getattr(step, "__closure__", None) or () if _is_full(cell)]
    code = getattr(step, "__code__", None)
    wrapped = code is not None and code.co_filename == lr_scheduler.__file__
    if wrapped and not any(isinstance(cell.cell_contents, FunctionType) for cell in cells):
        raise absent(step, "__closure__", "lets a session skip a step that a scheduler has wrapped")
    yield from cells


def _is_full(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def real_clipping(function: Callable[..., object]) -> CellType | None:
    """Return the closure cell in which torch's clipping function, a wrapper, has the real one.

    Return None for a replacement by other code. Without the closure: UsageError when the patch is
    installed.
    """
    if not isinstance(function, FunctionType) or function.__module__ != clip_grad.__name__:
        return None
    cells = function.__closure__ or ()
    found = next((cell for cell in cells if isinstance(cell.cell_contents, FunctionType)), None)
    if found is None:
        raise absent(function, "__closure__", "also patches scripts that import it by name")
    return found
