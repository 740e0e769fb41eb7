"""``copy.deepcopy`` of a divided model: the copy is whole, and may be divided in turn.

``pickle`` can't do that: the ranks would have to gather, and only one of them may be saving.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from torch.nn import Module
from torchbus.plugin import Unsupported

from torchbus_tensor_parallel._compat import (
    forget_distribution,
    hooks_after,
    hooks_before,
    load_hooks,
    state_hooks,
)

PUT = ("__deepcopy__", "__reduce_ex__")
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
        vars(module)["__reduce_ex__"] = partial(_no_pickle, type(module).__name__)

    def undo() -> None:
        for module in modules:
            for name in PUT:
                vars(module).pop(name, None)

    return undo


def _no_pickle(name: str, protocol: object) -> NoReturn:
    raise Unsupported(
        f"pickling {name} under strategy='tp' (torch.save(model), or a process that gets it): a"
        " rank has only parts of its layers. Save model.state_dict(), which is whole, or save the"
        " model after the block"
    )


def _copied(held: weakref.ref[Module], put: Keys, memo: dict[int, object]) -> Module:
    module = held()
    assert module is not None
    ours = {name: vars(module).pop(name) for name in PUT}
    for table, keys in zip(TABLES, put, strict=True):
        # the hooks themselves are not copied, nor the session that they lead to
        memo.update((id(hook), hook) for key, hook in table(module).items() if key in keys)
    try:
        made = copy.deepcopy(module, memo)
    finally:
        vars(module).update(ours)
    for table, keys in zip(TABLES, put, strict=True):
        for key in keys:
            table(made).pop(key, None)
    forget_distribution(made)
    return made
