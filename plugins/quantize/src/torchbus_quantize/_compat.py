"""Private names of torch, which only this module uses. They were seen in 2.6 to 2.13."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import nn


class LoadingLinear(nn.Linear):
    """Calls ``before_load`` with a ``state_dict`` before torch loads this layer's values from it.

    Without ``_load_from_state_dict``: torch refuses float weights by their shape.
    """

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        self.before_load(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    @abstractmethod
    def before_load(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Change the dict, which is a copy of the script's dict."""
