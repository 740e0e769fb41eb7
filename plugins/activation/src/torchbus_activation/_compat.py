"""Private names of torch, which only this module uses. All were seen in 2.6 to 2.13."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.nn.modules import batchnorm

NORM_BASE: type[Any] = batchnorm._NormBase
"""The base of layers with running statistics. Without it: AttributeError when the plugin is
imported.
"""

buffers: Callable[[Module], dict[str, Tensor | None]] = attrgetter("_buffers")
"""The buffers of one module, by name. Without it: AttributeError at the first backward."""
