"""Private names of torch and torchao that this package uses; nothing else in it uses one.

Torch's were seen in 2.6 to 2.13, torchao's in 0.18.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState
from torch.nn import Module
from torchbus.compat.required import private, require

sparse_values: Callable[[Tensor], Tensor] = Tensor._values
"""Of a sparse tensor that may not be coalesced. Without it: AttributeError when the plugin is
imported.
"""

check_and_unscale_: Callable[[list[Tensor], Tensor, Tensor], None] = private(
    torch, "_amp_foreach_non_finite_check_and_unscale_", "looks for overflows in gradients"
)
"""Without it: UsageError at the first backward."""


def scale_of(scaler: GradScaler) -> Tensor | None:
    """The scale, on its device; None before the first use. Without ``_scale``: see ``check``."""
    return getattr(scaler, "_scale", None)


def make_scale(scaler: GradScaler, device: torch.device) -> None:
    """Make the scale before the first use. Without ``_lazy_init_scale_growth_tracker``:
    AttributeError at the first backward.
    """
    scaler._lazy_init_scale_growth_tracker(device)


def note_step(scaler: GradScaler, found: Tensor) -> None:
    """Record a step that was taken (``found`` is 0) or skipped (1).

    Without ``_per_optimizer_states``: AttributeError at the first step.
    """
    scaler._per_optimizer_states[0] = {
        "stage": OptState.STEPPED,
        "found_inf_per_device": {found.device: found},
    }


def factor_of(loss: Tensor | None) -> Tensor | None:
    """What a loss was multiplied by. Without ``_saved_other``: see ``check``."""
    return getattr(getattr(loss, "grad_fn", None), "_saved_other", None)


@cache
def check() -> None:
    """Raise UsageError if a GradScaler of the loop would not be seen, and losses scaled twice."""
    need = "detects that the loop scales its losses itself"
    require(GradScaler, "_scale", need)
    with torch.enable_grad():
        one = torch.ones((), device="cpu")
        require((one.clone().requires_grad_() * one).grad_fn, "_saved_other", need)


def share_parameters(module: Module, owner: Module) -> None:
    """Let a module compute with the parameters that another one has at the time.

    Without ``_parameters``: AttributeError when a model is converted to float8.
    """
    module._parameters = owner._parameters


def undo_inductor_patch() -> Callable[[], None]:
    """Remember torch's code generator before torchao changes it for float8.

    Returns a function that puts it back. Without ``_PATCHED`` or ``TritonOverrides``, torchao
    changes nothing, or in another way, and nothing is restored.
    """
    try:
        from torch._inductor.codegen.triton import TritonOverrides
        from torchao.float8 import _inductor_patch as patch
    except ImportError:
        return lambda: None
    overrides: Any = TritonOverrides
    defined = {name: vars(overrides).get(name) for name in ("minimum", "maximum")}

    def undo() -> None:
        for name, method in defined.items():
            if method is None:
                if name in vars(overrides):
                    delattr(overrides, name)
            else:
                setattr(overrides, name, method)
        patch._PATCHED = False

    return (lambda: None) if getattr(patch, "_PATCHED", True) else undo
