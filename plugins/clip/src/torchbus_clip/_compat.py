"""Private names of torch, which only this module uses. All were seen in 2.6 to 2.13."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

sparse_values: Callable[[Tensor], Tensor] = Tensor._values
"""The values of a sparse tensor that may not be coalesced. Without it: AttributeError when the
plugin is imported.
"""
