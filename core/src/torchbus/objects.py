"""The models, optimizers and loaders of a session: found or adopted, and named."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, compress, repeat
from types import FrameType
from typing import TYPE_CHECKING, TypeVar, cast

from torch import Size, Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from torchbus.compat import python
from torchbus.compat.torch_names import children
from torchbus.errors import UsageError

if TYPE_CHECKING:
    from torchbus.bus.registry import Bus


T = TypeVar("T")
Thing = TypeVar("Thing", Module, Optimizer)
MARK = "torchbus_internal"


def mark_internal(thing: Thing) -> Thing:
    """Mark a module or an optimizer as a plugin's own, and return it.

    ``explain()``, checkpoints and averages leave it out. No event is sent for such an optimizer.
    But its constructor sends ``parameters_added``, unless called in the kit's ``making_internal``.
    """
    setattr(thing, MARK, True)
    return thing


def is_marked(thing: Module | Optimizer) -> bool:
    """Whether this very object is marked."""
    return getattr(thing, MARK, False) is True


frozen: list[weakref.ref[object]] = []
"""Objects that ``alive`` finds although ``gc.get_objects`` does not list them: code that calls
``gc.freeze`` adds the modules, optimizers and loaders of that time.
"""


def alive(*kinds: type[T]) -> list[T]:
    """Return all objects of these classes that the garbage collector knows."""
    # One call into C holds the GIL throughout: otherwise another thread could free a listed object.
    collects = gc.isenabled()
    gc.disable()
    try:
        listed = chain.from_iterable(map(gc.get_objects, (None,)))
        twice = chain.from_iterable(map(repeat, listed, repeat(2)))
        # isinstance would call code of proxies
        young = compress(twice, map(issubclass, map(type, twice), repeat(kinds)))
        return [*young, *_among_frozen(kinds)]
    finally:
        if collects:
            gc.enable()


def _among_frozen(kinds: tuple[type[T], ...]) -> Iterator[T]:
    for reference in frozen:
        one = reference()
        if issubclass(type(one), kinds):
            yield cast("T", one)


def optimizers() -> list[Optimizer]:
    """Return all optimizers but those that a plugin has made for its own use."""
    return [optimizer for optimizer in alive(Optimizer) if not is_marked(optimizer)]


def models_of(parameters: Iterable[Tensor]) -> list[Module]:
    """Return the outermost modules that own any of these parameters, in the parameters' order."""
    order = {id(parameter): index for index, parameter in enumerate(parameters)}
    roots = [
        root
        for root in outermost(alive(Module))
        if any(id(p) in order for p in root.parameters()) and not is_internal(root)
    ]
    return sorted(
        roots, key=lambda root: sorted(order.get(id(p), len(order)) for p in root.parameters())
    )


def shape_of(parameter: Tensor, bus: Bus) -> Size:
    """Return the shape of a whole parameter, also where a rank holds only a part of it."""
    reported: Size | None = bus.hook.whole_shape(parameter=parameter)
    return parameter.shape if reported is None else reported


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

    Such a module has a forward, child modules and parameters, and its class occurs more than once.
    Of nested blocks, only the outermost are returned.
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
    return {} if frame is None else {**frame.f_globals, **python.read(frame)}


def name_of(thing: object, frame: FrameType | None) -> str:
    """Return what the innermost frame that names the thing calls it, or ""."""
    return _name_in(_scopes(frame), thing)


def _name_in(scopes: Iterable[dict[str, object]], thing: object) -> str:
    for scope in scopes:
        for name, value in scope.items():
            if value is thing and not name.startswith("_") and name != "self":
                return name
    return ""


def names_of(things: Iterable[object], frame: FrameType | None) -> list[str]:
    """Return names of models, and of their layers and tensors ("net.0.weight"), or "".

    A name begins with the model's variable in the outermost frame, or else with its class.
    """
    scopes = list(_scopes(frame))[::-1]
    things, found = list(things), dict[int, str]()
    wanted = set(map(id, things))
    for root in outermost(alive(Module)):
        owned = chain(root.named_modules(), root.named_parameters(), root.named_buffers())
        paths = {id(part): path for path, part in owned if id(part) in wanted}
        if paths and not is_internal(root):
            name = _name_in(scopes, root) or type(root).__name__
            found |= {key: f"{name}.{path}".rstrip(".") for key, path in paths.items()}
    return [found.get(id(thing)) or _name_in(scopes, thing) for thing in things]


def _scopes(frame: FrameType | None) -> Iterator[dict[str, object]]:
    while frame is not None:
        yield python.read(frame)
        if frame.f_back is None or frame.f_code.co_name == "<module>":
            yield frame.f_globals
        frame = frame.f_back
    # under `torchbus run` the script has no caller in user code
    yield vars(sys.modules["__main__"])


class Adopted:
    """Objects that the script has passed to ``adopt``. With ``capture``, all objects count."""

    def __init__(self, bus: Bus, capture: bool) -> None:
        self._bus = bus
        self._capture = capture
        self._things: dict[int, object] = {}
        self.arguments: Iterable[object] = ()
        """What a decorated function was called with, until it is announced."""

    def includes(self, thing: object) -> bool:
        """Whether the session may act on this object."""
        return self._capture or id(thing) in self._things

    def add(self, thing: object, announces: bool) -> None:
        """Adopt an object. Raises UsageError if it is not a module, optimizer, loader or tensor."""
        if not isinstance(thing, Module | Optimizer | Tensor | DataLoader):
            raise UsageError(
                f"adopt({type(thing).__name__}): pass modules, optimizers, DataLoaders or tensors"
            )
        self._things[id(thing)] = thing
        if announces:
            self._announce(thing)

    def announce_all(self, frame: FrameType | None) -> None:
        """Announce what is adopted and, with ``capture``, what the caller's variables name."""
        seen, self.arguments = [*variables(frame).values(), *self.arguments], ()
        named = {id(thing): thing for thing in seen}.values()
        modules = outermost(thing for thing in named if isinstance(thing, Module))
        optimizers = [thing for thing in named if isinstance(thing, Optimizer)]
        found = [*self._things.values(), *([*modules, *optimizers] if self._capture else [])]
        for thing in {id(one): one for one in found}.values():
            self._announce(thing)

    def clear(self) -> None:
        """Release the objects."""
        self._things.clear()

    def _announce(self, thing: object) -> None:
        if isinstance(thing, Module):
            self._bus.hook.model_found(model=thing, calling=False)
        elif isinstance(thing, Optimizer):
            for group in thing.param_groups:
                self._bus.hook.parameters_added(optimizer=thing, parameters=list(group["params"]))
        elif isinstance(thing, Tensor):
            self._bus.hook.parameters_added(optimizer=None, parameters=[thing])
