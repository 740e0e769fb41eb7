"""Which layers of a model follow each other, so that stages can be made of them."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn
from torch.nn import Module
from torchbus.plugin import UsageError

AUTO = "auto"


class Layers(NamedTuple):
    """Consecutive layers. ``path`` names their list in the model, "" if that is the model.

    ``holder`` is the nn.Sequential that calls them, or an nn.ModuleList, whose model does.
    """

    path: str
    holder: nn.Sequential | nn.ModuleList

    def names(self) -> list[str]:
        """Each layer's name in the model."""
        prefix = f"{self.path}." if self.path else ""
        return [f"{prefix}{name}" for name, _ in self.holder.named_children()]


def find(model: Module, blocks: str) -> Layers | None:
    """The layers of a model: itself, if it is an nn.Sequential, else its longest list of blocks.

    ``blocks`` is "auto", or the path of the list. None if there is none.
    Raises UsageError if ``blocks`` names something else.
    """
    if blocks != AUTO:
        return Layers(blocks, _named(model, blocks))
    if isinstance(model, nn.Sequential) and not _has_own_forward(model):
        return Layers("", model)
    lists = [
        Layers(path, module)
        for path, module in model.named_modules()
        if isinstance(module, nn.Sequential | nn.ModuleList) and _repeats(module)
    ]
    return max(lists, key=lambda one: len(one.holder), default=None)


def _has_own_forward(model: nn.Sequential) -> bool:
    """Whether a class of the script's adds to what nn.Sequential does."""
    kinds = type(model).__mro__
    return any("forward" in vars(kind) for kind in kinds[: kinds.index(nn.Sequential)])


def _repeats(module: nn.Sequential | nn.ModuleList) -> bool:
    """Whether these are blocks: at least two, all with parameters and of one class."""
    kinds = {type(one) for one in module}
    return (
        len(module) > 1
        and len(kinds) == 1
        and all(any(True for _ in one.parameters()) for one in module)
    )


def _named(model: Module, blocks: str) -> nn.Sequential | nn.ModuleList:
    try:
        found = model.get_submodule(blocks)
    except AttributeError:
        found = None
    if not isinstance(found, nn.Sequential | nn.ModuleList):
        lists = [
            path or "''"
            for path, module in model.named_modules()
            if isinstance(module, nn.Sequential | nn.ModuleList)
        ]
        what = "nothing" if found is None else type(found).__name__
        raise UsageError(
            f"blocks={blocks!r}: {type(model).__name__} has {what} there, and no nn.ModuleList or"
            f" nn.Sequential; it has some at {', '.join(lists) or 'no place'}"
        )
    return found
