"""Tensors and the engine of autograd."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import torch
from torch import Tensor

from torchbus._compat.required import private

current_graph_task_id: Callable[[], int] = private(
    torch._C, "_current_graph_task_id", "tells a backward inside a backward from the loop's own"
)
"""Seen in 2.4 to 2.13. Without it: UsageError at the first backward."""

use_count: Callable[[Tensor], int] = private(
    Tensor, "_use_count", "tells which batch a graph has saved"
)
"""One for Python, and one for each graph or view.

Seen in 2.4 to 2.13. Without it: UsageError at the first backward after a batch.
"""

version: Callable[[Tensor], int] = attrgetter("_version")
"""Grows with each change in place. Seen in 2.4 to 2.13. Without it: AttributeError in backward."""

foreach_mul_: Callable[..., None] = private(
    torch, "_foreach_mul_", "multiplies all gradients at once"
)
"""Seen in 2.4 to 2.13. Without it: UsageError where gradients are weighted."""
