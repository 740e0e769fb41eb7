"""Post-accumulate-grad hooks of the user (an optimizer that steps inside backward) see synchronised gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

Held = list[tuple[Tensor, dict[int, Any]]]


def take_off(parameters: Iterable[Any]) -> Held:
    """Remove the hooks; returns them with their parameters, in the order in which backward reaches these."""
    found = [parameter for parameter in parameters if parameter._post_accumulate_grad_hooks]
    held = [(parameter, dict(parameter._post_accumulate_grad_hooks)) for parameter in reversed(found)]
    for parameter in found:
        parameter._post_accumulate_grad_hooks.clear()
    return held


def put_back(held: Held) -> None:
    for parameter, hooks in held:
        parameter._post_accumulate_grad_hooks.update(hooks)  # type: ignore[attr-defined]


def run(held: Held) -> None:
    """Call the hooks of parameters that have a gradient, as backward would have."""
    for parameter, hooks in held:
        if parameter.grad is not None:
            for hook in hooks.values():
                hook(parameter)
