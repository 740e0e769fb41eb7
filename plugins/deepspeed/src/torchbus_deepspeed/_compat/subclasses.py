"""What torch does with a subclass of its tensors, as it was seen in torch 2.6 to 2.13."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

as_plain_tensors: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunctionSubclass
"""Without it: AttributeError when the package is imported."""

SHALLOW_COPY = "_has_compatible_shallow_copy_type"
"""What ``model.to`` asks of two tensors. Without it: Unsupported at ``model.to`` under stage 3."""
