"""Which models, optimizers and loaders there are, and what the loop calls them. Asked rarely, never in a step."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, compress, repeat
from types import FrameType
from typing import Any, TypeVar

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from torchbus._session import local_variables

T = TypeVar("T")


def alive(kind: type[T]) -> list[T]:
    """All objects of a class that the garbage collector knows."""
    # All in one call of C, which keeps the GIL: else a thread of gloo could give up a tensor that is in the list, of which torch 2.4 warns.
    # A collection would run Python code in the midst of it, that of gc.callbacks.
    collects = gc.isenabled()
    gc.disable()
    try:
        listed = chain.from_iterable(map(gc.get_objects, (None,)))
        twice = chain.from_iterable(map(repeat, listed, repeat(2)))
        return list(compress(twice, map(issubclass, map(type, twice), repeat(kind))))  # isinstance would ask proxies
    finally:
        if collects:
            gc.enable()


def models_of(parameters: Iterable[Tensor]) -> list[Module]:
    """Outermost modules that own any of these parameters, in the order of the parameters."""
    order = {id(parameter): index for index, parameter in enumerate(parameters)}
    roots = [root for root in outermost(alive(Module)) if any(id(p) in order for p in root.parameters()) and not is_internal(root)]
    return sorted(roots, key=lambda root: min(order.get(id(p), len(order)) for p in root.parameters()))


def is_internal(model: Module) -> bool:
    """Whether a plugin has made the module for its own purposes (it marks a part of it ``torchbus_internal``)."""
    return any(getattr(module, "torchbus_internal", False) is True for module in model.modules())


def outermost(modules: Iterable[Module]) -> list[Module]:
    """Those that are not part of another one."""
    modules = list(modules)
    inner = {id(child) for module in modules for child in module._modules.values()}
    return [module for module in modules if id(module) not in inner]


def repeated_blocks(model: Module) -> list[Module]:
    """Modules that are called, have parts, and whose class comes more than once in the model; of those inside each other, the outermost."""
    inner = [module for module in model.modules() if module is not model and is_called(module)]
    counts = Counter(type(module) for module in inner if any(True for _ in module.children()) and any(True for _ in module.parameters()))
    blocks: list[Module] = []
    inside: set[int] = set()
    for module in inner:
        if counts[type(module)] > 1 and id(module) not in inside:
            blocks.append(module)
            inside.update(id(part) for part in module.modules())
    return blocks


def is_called(module: Module) -> bool:
    """Whether it has a forward: a ModuleList has none."""
    return type(module).forward is not Module.forward


def variables(frame: FrameType | None) -> dict[str, Any]:
    """The variables that a frame sees, its globals first."""
    return {} if frame is None else {**frame.f_globals, **local_variables.read(frame)}


def named_in(frame: FrameType | None) -> tuple[list[Module], list[Optimizer]]:
    """Modules and optimizers that the caller's variables name, in the order of the variables."""
    things = list({id(thing): thing for thing in variables(frame).values()}.values())
    modules = outermost(thing for thing in things if isinstance(thing, Module))
    return modules, [thing for thing in things if isinstance(thing, Optimizer)]


def name_of(thing: object, frame: FrameType | None) -> str:
    """What the innermost frame that has a name for it calls it; "" if none has."""
    for scope in _scopes(frame):
        for name, value in scope.items():
            if value is thing and not name.startswith("_") and name != "self":
                return name
    return ""


def _scopes(frame: FrameType | None) -> Iterator[dict[str, Any]]:
    while frame is not None:
        yield local_variables.read(frame)
        if frame.f_back is None or frame.f_code.co_name == "<module>":
            yield frame.f_globals
        frame = frame.f_back
    yield vars(sys.modules["__main__"])  # under `torchbus run` the script is nobody's caller
