"""Private names of torch that mixed precision uses; nothing else in this package uses one.

All were seen in 2.4 to 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState
from torchbus.plugin import private, require

sparse_values: Callable[[Tensor], Tensor] = Tensor._values
"""Of a sparse tensor that may not be coalesced. Without it: AttributeError when the plugin is
imported.
"""

check_and_unscale_: Callable[[list[Tensor], Tensor, Tensor], None] = private(
    torch, "_amp_foreach_non_finite_check_and_unscale_", "looks for overflows in gradients"
)
"""Without it: UsageError at the first backward."""


def scale_of(scaler: GradScaler) -> Tensor | None:
    """On its device; None before the first use. Without ``_scale``: see ``check``."""
    return getattr(scaler, "_scale", None)


def make_scale(scaler: GradScaler, device: torch.device) -> None:
    """Before the first use. Without ``_lazy_init_scale_growth_tracker``: AttributeError at the
    first backward.
    """
    scaler._lazy_init_scale_growth_tracker(device)


def note_step(scaler: GradScaler, found: Tensor) -> None:
    """A step that was taken (``found`` is 0) or skipped (1).

    Without ``_per_optimizer_states``: AttributeError at the first step.
    """
    scaler._per_optimizer_states[0] = {
        "stage": OptState.STEPPED,
        "found_inf_per_device": {found.device: found},
    }


def factor_of(loss: Tensor | None) -> Tensor | None:
    """What a loss was multiplied with. Without ``_saved_other``: see ``check``."""
    return getattr(getattr(loss, "grad_fn", None), "_saved_other", None)


@cache
def check() -> None:
    """Raise UsageError if a GradScaler of the loop would not be seen, and losses scaled twice."""
    need = "tells that the loop scales its losses itself"
    require(GradScaler, "_scale", need)
    with torch.enable_grad():
        one = torch.ones((), device="cpu")
        require((one.clone().requires_grad_() * one).grad_fn, "_saved_other", need)
