"""Private names of torch and CPython that this plugin uses; nothing else in this package uses one.

All were seen in 2.6 to 2.13, and in Python 3.10 to 3.13.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from torch import _tensor

current_frame: Callable[..., FrameType] = sys._getframe
"""``current_frame(1)`` is the caller's. Without it: AttributeError when the plugin is imported."""

FILE_OF_TENSOR: str = _tensor.__file__
"""Where methods of Tensor call others. Without it: AttributeError when the plugin is imported."""
