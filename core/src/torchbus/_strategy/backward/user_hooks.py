"""The user's hooks of parameters see synchronised gradients.

An example of a post-accumulate-grad hook is an optimizer that steps inside backward; one of
``register_hook`` may clamp the gradient, which is not the same before and after the average.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from torchbus._compat.gradients import post_accumulate_hooks as hooks_of
from torchbus._compat.gradients import tensor_hooks
from torchbus._session.notices import INSIDE

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


class TensorHooks:
    """The user's hooks of ``register_hook``, taken off until the gradients are synchronised.

    Those of plugins stay: they look at this rank's own gradients.
    """

    def __init__(self, parameters: Iterable[Any]) -> None:
        found = [
            (parameter, hooks) for parameter in parameters if (hooks := tensor_hooks(parameter))
        ]
        users = [
            (parameter, {key: hook for key, hook in hooks.items() if _is_users(hook)})
            for parameter, hooks in found
        ]
        self._held = [(parameter, hooks) for parameter, hooks in users if hooks]

    def __bool__(self) -> bool:
        return bool(self._held)

    def take_off(self) -> None:
        for parameter, hooks in self._held:
            for key in hooks:
                _table(parameter).pop(key, None)

    def put_back(self) -> None:
        for parameter, hooks in self._held:
            _table(parameter).update(hooks)

    def run(self) -> None:
        """Call them with the gradients that a backward has made, and take what they return."""
        for parameter, hooks in reversed(self._held):
            for hook in hooks.values() if parameter.grad is not None else ():
                changed = hook(parameter.grad)
                parameter.grad = parameter.grad if changed is None else changed


def _table(parameter: Any) -> dict[int, Any]:
    table = tensor_hooks(parameter)
    assert table is not None  # the hooks were only taken out of it
    return table


def _is_users(hook: Any) -> bool:
    name = getattr(getattr(hook, "func", hook), "__module__", None) or ""
    return not name.startswith(INSIDE)
