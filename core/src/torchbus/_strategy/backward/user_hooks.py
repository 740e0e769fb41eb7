"""The user's post-accumulate-grad hooks see synchronised gradients.

An example is an optimizer that steps inside backward.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from torchbus._compat.gradients import post_accumulate_hooks as hooks_of

Held = list[tuple[Tensor, dict[int, Any]]]


def take_off(parameters: Iterable[Any]) -> Held:
    """Remove the hooks.

    Returns them with their parameters, in the order in which backward reaches these.
    """
    found = [(parameter, hooks) for parameter in parameters if (hooks := hooks_of(parameter))]
    if not found:
        return []
    held = [(parameter, dict(hooks)) for parameter, hooks in reversed(found)]
    for _, hooks in found:
        hooks.clear()
    return held


def put_back(held: Held) -> None:
    for parameter, hooks in held:
        table = hooks_of(parameter)
        assert table is not None  # it was only cleared
        table.update(hooks)


def run(held: Held) -> None:
    """Call the hooks of parameters that have a gradient, as backward would have."""
    for parameter, hooks in held:
        if parameter.grad is not None:
            for hook in hooks.values():
                hook(parameter)
