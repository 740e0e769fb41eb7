"""The hooks around a module's forward and backward, as they were seen in torch 2.6 to 2.13."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import Module

MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""Tables of a module. Without one: AttributeError at the end of the session."""

HOOKS_WITH_KWARGS = "_forward_pre_hooks_with_kwargs"
"""Which of the first take keyword arguments. Without it: AttributeError at a first forward."""


def hook_tables(module: Module) -> list[dict[int, Any]]:
    """Return the dicts of hooks that run around a module's forward and backward."""
    return [getattr(module, name) for name in MODULE_HOOKS]


def compiled_in(model: Module) -> Module | None:
    """Return the submodule whose calls are compiled, or None.

    Without ``_orig_mod`` or ``_compiled_call_impl``: torch's error at its first forward.
    """
    for module in model.modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None):
            return getattr(module, "_orig_mod", module)
    return None


def pre_hooks(module: Module) -> dict[int, Callable[..., Any]]:
    """Return the hooks that run before a module's forward."""
    hooks: dict[int, Callable[..., Any]] = getattr(module, MODULE_HOOKS[0])
    return hooks


def run_pre_hooks(
    module: Module, known: set[int], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Run those that were added during this call, which torch begins to run with the next one.

    Returns the arguments of the forward.
    """
    for number, hook in list(pre_hooks(module).items()):
        if number not in known and number in getattr(module, HOOKS_WITH_KWARGS):
            args, kwargs = hook(module, args, kwargs) or (args, kwargs)
        elif number not in known:
            made = hook(module, args)
            args = args if made is None else made if isinstance(made, tuple) else (made,)
    return args, kwargs
