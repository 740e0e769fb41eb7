"""Optimizers, schedulers and the clipping of gradients.

All were seen in 2.6 to 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CellType, FunctionType

from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from torchbus._compat.required import absent, require

PATCH_STEP = "_patch_step_function"
"""The method by which a new optimizer gives its class's ``step`` torch's hooks.

Without it: AttributeError when the seam is installed.
"""


def is_hooked(step: object) -> bool:
    """Whether it is a ``step`` with torch's hooks. Without ``hooked``: see ``require_hooked``."""
    return getattr(step, "hooked", False) is True


def require_hooked(kind: type[Optimizer]) -> None:
    """Raise UsageError where a new optimizer's ``step`` does not say that it is hooked."""
    require(kind.step, "hooked", "lets a session skip a step of an optimizer")


def has_begun(scheduler: LRScheduler) -> bool:
    """Whether its constructor is over, which steps as well. Without ``_step_count``: see
    ``require_step_count``.
    """
    return vars(scheduler).get("_step_count", 0) > 0 or "best" in vars(scheduler)


def require_step_count() -> None:
    """Raise UsageError where schedulers do not count their steps."""
    require(LRScheduler, "_step_count", "lets a session skip a scheduler's step")


def cells_of_own_step(optimizer: Optimizer) -> Iterator[CellType]:
    """A scheduler gives its optimizer a ``step`` of its own, which keeps the class's function in a
    closure.

    Without the closure: UsageError when the seam is installed.
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
    """Where torch's own clipping, a function that ``no_grad`` has decorated, keeps the real one.

    Without the closure: UsageError when the seam is installed. None of what somebody has put in its
    place.
    """
    if not isinstance(function, FunctionType) or function.__module__ != clip_grad.__name__:
        return None
    cells = function.__closure__ or ()
    found = next((cell for cell in cells if isinstance(cell.cell_contents, FunctionType)), None)
    if found is None:
        raise absent(function, "__closure__", "lets scripts that import it by name be heard")
    return found
