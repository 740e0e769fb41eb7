"""The private name of torch that this plugin uses. It was seen in 2.6 to 2.13."""

from __future__ import annotations

from torch import _tensor

FILE_OF_TENSOR: str = _tensor.__file__
"""Where methods of Tensor call others. Without it: AttributeError when the plugin is imported."""
