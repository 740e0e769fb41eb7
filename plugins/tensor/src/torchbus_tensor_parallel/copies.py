"""``copy.deepcopy`` of a divided model: the copy is whole, and may be divided in turn."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from functools import partial

from torch.nn import Module

from torchbus_tensor_parallel._compat import (
    forget_distribution,
    hooks_after,
    hooks_before,
    load_hooks,
    state_hooks,
)

TABLES = (hooks_before, hooks_after, state_hooks, load_hooks)
Keys = list[set[int]]


def hooks_of(model: Module) -> dict[Module, Keys]:
    """For each module, the keys of its hooks now."""
    return {module: [set(table(module)) for table in TABLES] for module in model.modules()}


def make_copies_whole(before: dict[Module, Keys]) -> Callable[[], None]:
    """Let these modules be copied without the hooks that they have got since ``before``.

    Returns a function that undoes this.
    """
    modules = weakref.WeakSet(before)
    for module, old in before.items():
        put = [set(table(module)) - keys for table, keys in zip(TABLES, old, strict=True)]
        vars(module)["__deepcopy__"] = partial(_copied, weakref.ref(module), put)

    def undo() -> None:
        for module in modules:
            vars(module).pop("__deepcopy__", None)

    return undo


def _copied(held: weakref.ref[Module], put: Keys, memo: dict[int, object]) -> Module:
    module = held()
    assert module is not None
    ours = vars(module).pop("__deepcopy__")
    for table, keys in zip(TABLES, put, strict=True):
        # the hooks themselves are not copied, nor the session that they lead to
        memo.update((id(hook), hook) for key, hook in table(module).items() if key in keys)
    try:
        made = copy.deepcopy(module, memo)
    finally:
        vars(module)["__deepcopy__"] = ours
    for table, keys in zip(TABLES, put, strict=True):
        for key in keys:
            table(made).pop(key, None)
    forget_distribution(made)
    return made
