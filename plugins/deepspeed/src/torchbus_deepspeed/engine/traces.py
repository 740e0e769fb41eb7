"""What DeepSpeed adds to a model while it makes an engine, to be removed again."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Module

from torchbus_deepspeed._compat import hooks

Thing = Module | Tensor
LATER = {"grad_accum", "ds_grad_is_ready"}


class Traces:
    """Compares a model before (``__init__``) and after (``note``)."""

    def __init__(self, model: Module) -> None:
        self._things: list[Thing] = [*model.modules(), *model.parameters()]
        self._attributes = [set(vars(thing)) for thing in self._things]
        self._tables = [hooks.hook_tables(module) for module in model.modules()]
        self._hooks = [set(table) for tables in self._tables for table in tables]

    def note(self) -> None:
        """The engine is made."""
        self._attributes = [
            set(vars(thing)) - before | LATER
            for thing, before in zip(self._things, self._attributes, strict=True)
        ]
        flat = [table for tables in self._tables for table in tables]
        self._hooks = [set(table) - old for table, old in zip(flat, self._hooks, strict=True)]

    def remove(self) -> None:
        """Remove what has come in between, where it is still there."""
        for thing, names in zip(self._things, self._attributes, strict=True):
            for name in names & vars(thing).keys():
                delattr(thing, name)
        flat: list[dict[int, object]] = [table for tables in self._tables for table in tables]
        for table, keys in zip(flat, self._hooks, strict=True):
            for key in keys & table.keys():
                del table[key]
