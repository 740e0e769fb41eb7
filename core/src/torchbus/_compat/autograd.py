"""Tensors and the engine of autograd."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter

import torch
from torch import Tensor
from torch._functorch import pyfunctorch

from torchbus._compat.required import private

current_graph_task_id: Callable[[], int] = private(
    torch._C, "_current_graph_task_id", "tells a backward inside a backward from the loop's own"
)
"""Seen in 2.6 to 2.13. Without it: UsageError at the first backward."""

use_count: Callable[[Tensor], int] = private(
    Tensor, "_use_count", "tells which batch a graph has saved"
)
"""One for Python, and one for each graph or view.

Seen in 2.6 to 2.13. Without it: UsageError at the first backward after a batch.
"""

version: Callable[[Tensor], int] = attrgetter("_version")
"""Grows with each change in place. Seen in 2.6 to 2.13. Without it: AttributeError in backward."""

foreach_mul_: Callable[..., None] = private(
    torch, "_foreach_mul_", "multiplies all gradients at once"
)
"""Seen in 2.6 to 2.13. Without it: UsageError where gradients are weighted."""


def outside_transforms() -> AbstractContextManager[object]:
    """Compute as if no transform of ``torch.func`` ran: a collective can't be transformed.

    Without ``temporarily_clear_interpreter_stack``: UsageError at a first call in a transform. Seen
    in 2.6 to 2.13.
    """
    if maybe_current_level() is None:
        return nullcontext()
    context: AbstractContextManager[object] = clear_transforms()
    return context


maybe_current_level: Callable[[], int | None] = private(
    torch._C._functorch, "maybe_current_level", "tells whether a transform of torch.func runs"
)
"""Seen in 2.6 to 2.13. Without it: UsageError at a model's first call."""

clear_transforms = private(
    pyfunctorch, "temporarily_clear_interpreter_stack", "lets ranks meet inside of a transform"
)
