"""Which models, optimizers and loaders there are, and what the loop calls them.

The session asks rarely, and never in a step.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, compress, repeat
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from torch import Size, Tensor
from torch.nn import Module
from torch.optim import Optimizer

from torchbus._compat import local_variables
from torchbus._compat.modules import children
from torchbus._seams.internal import is_marked

if TYPE_CHECKING:
    from torchbus._bus.bus import Bus

T = TypeVar("T")


def alive(*kinds: type[T]) -> list[T]:
    """Return all objects of these classes that the garbage collector knows."""
    # One call of C, which keeps the GIL: otherwise a thread of gloo could free a tensor that is in
    # the list, and torch 2.4 would warn.
    collects = gc.isenabled()
    gc.disable()
    try:
        listed = chain.from_iterable(map(gc.get_objects, (None,)))
        twice = chain.from_iterable(map(repeat, listed, repeat(2)))
        # isinstance would call code of proxies
        return list(compress(twice, map(issubclass, map(type, twice), repeat(kinds))))
    finally:
        if collects:
            gc.enable()


def optimizers() -> list[Optimizer]:
    """Return all optimizers but those that a plugin has made for its own use."""
    return [optimizer for optimizer in alive(Optimizer) if not is_marked(optimizer)]


def models_of(parameters: Iterable[Tensor]) -> list[Module]:
    """Return the outermost modules that own any of these parameters, in the order of the
    parameters.
    """
    order = {id(parameter): index for index, parameter in enumerate(parameters)}
    roots = [
        root
        for root in outermost(alive(Module))
        if any(id(p) in order for p in root.parameters()) and not is_internal(root)
    ]
    return sorted(
        roots, key=lambda root: min(order.get(id(p), len(order)) for p in root.parameters())
    )


def shape_of(parameter: Tensor, bus: Bus) -> Size:
    """Return the shape of a whole parameter, also where a rank keeps only a part of it."""
    told: Size | None = bus.hook.whole_shape(parameter=parameter)
    return parameter.shape if told is None else told


def is_internal(model: Module) -> bool:
    """Whether a plugin has made the module for its own use, and marked it (``mark_internal``)."""
    return any(map(is_marked, model.modules()))


def outermost(modules: Iterable[Module]) -> list[Module]:
    """Return the modules that are not part of another one."""
    modules = list(modules)
    inner = {id(child) for module in modules for child in children(module).values()}
    return [module for module in modules if id(module) not in inner]


def repeated_blocks(model: Module) -> list[Module]:
    """Return the modules of a model that look like repeated blocks.

    They have a forward and parts, and their class occurs more than once. Of blocks inside each
    other, the outermost count.
    """
    inner = [module for module in model.modules() if module is not model and is_called(module)]
    counts = Counter(
        type(module)
        for module in inner
        if any(True for _ in module.children()) and any(True for _ in module.parameters())
    )
    blocks: list[Module] = []
    inside: set[int] = set()
    for module in inner:
        if counts[type(module)] > 1 and id(module) not in inside:
            blocks.append(module)
            inside.update(id(part) for part in module.modules())
    return blocks


def is_called(module: Module) -> bool:
    """Whether the module has a forward. A ModuleList has none."""
    return type(module).forward is not Module.forward


def variables(frame: FrameType | None) -> dict[str, object]:
    """Return the variables that a frame sees, its globals first."""
    return {} if frame is None else {**frame.f_globals, **local_variables.read(frame)}


def named_in(frame: FrameType | None) -> tuple[list[Module], list[Optimizer]]:
    """Return modules and optimizers that the caller's variables name, in the order of the
    variables.
    """
    things = list({id(thing): thing for thing in variables(frame).values()}.values())
    modules = outermost(thing for thing in things if isinstance(thing, Module))
    return modules, [thing for thing in things if isinstance(thing, Optimizer)]


def name_of(thing: object, frame: FrameType | None) -> str:
    """Return what the innermost frame that names the thing calls it, or ""."""
    for scope in _scopes(frame):
        for name, value in scope.items():
            if value is thing and not name.startswith("_") and name != "self":
                return name
    return ""


def _scopes(frame: FrameType | None) -> Iterator[dict[str, object]]:
    while frame is not None:
        yield local_variables.read(frame)
        if frame.f_back is None or frame.f_code.co_name == "<module>":
            yield frame.f_globals
        frame = frame.f_back
    # under `torchbus run` the script has no caller in user code
    yield vars(sys.modules["__main__"])
