"""Helpers for DTensors: shards, whole values, states, and optimizer steps."""

from __future__ import annotations

import linecache
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus.plugin import Context, Unsupported, UsageError

from torchbus_strategy.collectives import extremes
from torchbus_strategy.compat import READ, forget_meshes, handlers, local_part

if TYPE_CHECKING:
    import numpy as np


def whole(value: object) -> Any:
    """Gather a DTensor, and return its whole value without a graph. Return anything else as it is.

    All ranks of the DTensor's mesh call it.
    """
    if not isinstance(value, DTensor):
        return value
    local_one = value.detach()
    assert isinstance(local_one, DTensor)
    is_whole = all(isinstance(placement, Replicate) for placement in local_one.placements)
    return local_one.to_local() if is_whole else local_one.full_tensor()


@torch.no_grad()
def like(value: object, parameter: Tensor) -> Any:
    """Divide a value, or make it whole, as its parameter is.

    A value is divided if it is a tensor of the parameter's shape. Each rank uses its own copy,
    which must be the same on all ranks.
    """
    if not isinstance(parameter, DTensor):
        return whole(value)
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(value, mesh, placements, src_data_rank=None)


def alive_on_all(session: Context, references: Sequence[weakref.ref[Optimizer]]) -> list[Optimizer]:
    """Return the optimizers that live on every rank, whose states can be gathered.

    All ranks call it, with the same number of references. An optimizer that an exception holds on
    one rank may be gone on the others, and Python collects garbage at different times.
    """
    found = [reference() for reference in references]
    counted = extremes([one is not None for one in found], session.world_size)
    return [
        one for one, (on_all, _) in zip(found, counted, strict=True) if one is not None and on_all
    ]


aten = torch.ops.aten
Operator = Callable[..., object]


def _fill(
    operator: Operator, arguments: tuple[Any, ...], keywords: Mapping[str, object]
) -> DTensor:
    tensor: DTensor = arguments[0]
    drawn = like(operator(_room_for(tensor), *arguments[1:], **keywords), tensor)
    tensor.to_local().copy_(drawn.to_local())
    return tensor


def _made_like(
    operator: Operator, arguments: tuple[Any, ...], keywords: Mapping[str, object]
) -> Tensor:
    tensor: DTensor = arguments[0]
    made: Tensor = like(operator(_room_for(tensor), *arguments[1:], **keywords), tensor)
    return made


def _room_for(tensor: DTensor) -> Tensor:
    """Return an uninitialised tensor of the DTensor's whole shape."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.to_local().device)


DRAWS: dict[object, Callable[..., object]] = {
    aten.normal_.default: _fill,
    aten.uniform_.default: _fill,
    aten.bernoulli_.float: _fill,
    aten.randn_like.default: _made_like,
    aten.rand_like.default: _made_like,
}
"""The functions that DTensor calls for these operators."""


SIGNS = (
    "mixed torch.Tensor and DTensor",
    "sharding strategy",
    "Sharding propagation failed",
    "the local_tensor argument only accepts torch.Tensor but got",
)
INSIDE_TORCH = torch.__path__[0]


def has_sign(error: BaseException | None, *more: str) -> bool:
    """Whether torch says that an operation can't take divided tensors, or one of ``more``."""
    return isinstance(error, RuntimeError | NotImplementedError) and any(
        sign in str(error) for sign in (*SIGNS, *more)
    )


def no_entry(error: BaseException | None, which: str) -> Unsupported | None:
    """Return the error to raise if a dict lacked a divided parameter, and None otherwise.

    ``which`` describes the parameter.
    """
    if not (isinstance(error, KeyError) and error.args and isinstance(error.args[0], DTensor)):
        return None
    return Unsupported(
        f"a dict has no entry for a parameter {which}: it was made with the earlier parameters."
        " Make it after the optimizer, or use strategy='ddp'"
    )


def places_of(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return the frames outside of torch, the outermost first, each with its line."""
    return [
        (frame, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(INSIDE_TORCH)
    ]


def line_of(error: BaseException) -> str:
    """Return the line of the loop that failed, even if its frame has continued since."""
    local_one = [
        (frame.f_code.co_filename, number)
        for frame, number in places_of(error)
        if "torchbus" not in (frame.f_globals.get("__name__") or "")
    ]
    if not local_one:
        return "something"
    file, number = local_one[-1]
    return f"{file}:{number} ({linecache.getline(file, number).strip()})"


def read(operator: object, arguments: tuple[DTensor, ...], keywords: object) -> object:
    """Implement ``item()``. Torch would read this rank's part, even of a sum that is pending."""
    return whole(arguments[0]).item()


def to_list(tensor: DTensor) -> object:
    return whole(tensor).tolist()


def to_numpy(tensor: DTensor, *, force: bool = False) -> np.ndarray[Any, Any]:
    """Return a read-only array, because what the script writes into it would be lost."""
    if tensor.requires_grad and not force:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    array: np.ndarray[Any, Any] = whole(tensor).numpy(force=force)
    array.flags.writeable = False
    return array


def formatted(tensor: DTensor, form: str) -> str:
    return format(tensor.item(), form) if tensor.dim() == 0 else object.__format__(tensor, form)


READS: dict[object, Callable[..., object]] = {READ: read}
"""The function that DTensor calls for the operator that reads a number."""
METHODS: dict[str, object] = {"tolist": to_list, "numpy": to_numpy, "__format__": formatted}
"""Methods that DTensor inherits, and that need the whole tensor."""


Entry = dict[str, Any]


def whole_states(session: Context) -> Callable[..., None]:
    """Return a hook that gives ``model.state_dict()`` whole tensors. All ranks call the latter.

    Each module gets the hook, because the script may call ``state_dict()`` on a part of the model.
    Inside of ``in_parts(session)``, the parts stay as they are.
    """

    def gather(module: Module, state: Entry, prefix: str, _: object) -> None:
        for name, _parameter in _direct_parameters(module) if session.gathers_states else ():
            if prefix + name in state:
                state[prefix + name] = whole(state[prefix + name])

    return gather


@torch.no_grad()
def divided_states(module: Module, state: Entry, prefix: str, *_: object) -> None:
    """Let ``model.load_state_dict`` accept whole tensors, the same on all ranks."""
    for name, mine in _direct_parameters(module):
        value = state.get(prefix + name)
        if isinstance(mine, DTensor) and isinstance(value, Tensor):
            state[prefix + name] = like(value.to(mine.device), mine)


def whole_optimizer(state: Entry) -> Entry:
    """Return an optimizer's state_dict with whole tensors. All ranks call it."""
    entries = state["state"].items()
    return {**state, "state": {key: _changed(entry, whole) for key, entry in entries}}


def divided_optimizer(optimizer: Optimizer) -> None:
    """Divide what ``optimizer.load_state_dict`` has read: whole tensors, the same on all ranks."""
    for parameter, entry in optimizer.state.items():
        if isinstance(parameter, Tensor):
            optimizer.state[parameter] = _placed(entry, parameter)


def swap(optimizer: Optimizer, replaced: Mapping[int, nn.Parameter]) -> None:
    """Replace the optimizer's parameters, and move their state.

    ``replaced`` holds new parameters by the ``id`` of the old ones. The old ones must still be
    alive, but need no values.
    """
    for group in optimizer.param_groups:
        group["params"] = [replaced.get(id(one), one) for one in group["params"]]
    for old in [one for one in optimizer.state if id(one) in replaced]:
        new = replaced[id(old)]
        optimizer.state[new] = _placed(optimizer.state.pop(old), new)


def _direct_parameters(module: Module) -> list[tuple[str, nn.Parameter]]:
    return list(module.named_parameters(recurse=False, remove_duplicate=False))


def _placed(entry: object, parameter: Tensor) -> Any:
    return _changed(entry, lambda value: like(value, parameter))


def _changed(entry: object, change: Callable[[object], object]) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {key: change(value) for key, value in entry.items()}


def as_whole(
    session: Context,
    operators: Mapping[object, Callable[..., object]],
    methods: Mapping[str, object],
) -> None:
    """Let DTensor call the given functions for ``operators``, and have the given ``methods``.

    All ranks call those that gather.
    """
    undo = {"DTensor's operators": _handle(operators)} | {
        f"DTensor.{name}": _give(name, ours) for name, ours in methods.items()
    }
    for name, put_back in undo.items():
        session.on_close.callback(session.seams.note(name, put_back))


@contextmanager
def default_operator(operator: object) -> Iterator[None]:
    """Let DTensor run the operator as torch does in the block, even if a session replaces it."""
    known = handlers()
    ours = known.pop(operator, None)
    try:
        yield
    finally:
        if ours is not None:
            known[operator] = ours


def refuse_older_torch(session: Context, strategy: str, needed: str) -> None:
    """Raise UsageError if several ranks are to divide tensors, and this torch does so inexactly."""
    if torch.__version__ < needed and session.launcher.has_many_ranks():
        raise UsageError(
            f"the engine of strategy={strategy!r} needs torch {needed} or later on several ranks,"
            f" and this is {torch.__version__}, which fails there or gives other numbers: upgrade"
            " torch, or use strategy='ddp'"
        )


def forget_other_meshes(session: Context) -> None:
    """Forget the meshes of earlier blocks now, and this block's at its end.

    A process that is forked later would wait for the threads of this block's process group.
    """
    forget_meshes()
    session.on_close.callback(forget_meshes)


def _handle(ours: Mapping[object, Callable[..., object]]) -> Callable[[], None]:
    known = handlers()
    before = {operator: known[operator] for operator in ours if operator in known}
    known.update(ours)

    def undo() -> None:
        for operator in ours:
            known.pop(operator, None)
        known.update(before)

    return undo


def _give(name: str, ours: object) -> Callable[[], None]:
    """Give DTensor a method. It inherits torch's, so removing ours restores that."""
    setattr(DTensor, name, ours)
    return lambda: delattr(DTensor, name)


BY_ELEMENT = (
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "asgd",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "sgd",
)
"""Modules of torch.optim. In each, a function of its name updates lists of tensors in place."""


class LocalSteps:
    """Patches functions of torch so that steps run on local shards.

    Hooks around a step, and the state, still see DTensors.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._replaced: set[ModuleType] = set()

    def add(self, optimizer: Optimizer) -> None:
        """Replace the functions that the optimizer's class and its bases use."""
        for cls in type(optimizer).__mro__:
            package, _, name = cls.__module__.rpartition(".")
            module = sys.modules[cls.__module__]
            if package == "torch.optim" and name in BY_ELEMENT and module not in self._replaced:
                self._session.replace(module, name, _on_parts)
                self._replaced.add(module)


def _on_parts(original: Callable[..., None]) -> Callable[..., None]:
    def update(params: list[object], *args: object, **kwargs: object) -> None:
        lists = [value for value in (params, *args, *kwargs.values()) if isinstance(value, list)]
        if torch.is_grad_enabled() or not _divided_alike(lists):
            return original(params, *args, **kwargs)
        parts = {id(tensors): [_part(tensor) for tensor in tensors] for tensors in lists}
        given = [list(local_one) for local_one in parts.values()]
        original(
            *(parts.get(id(value), value) for value in (params, *args)),
            **{name: parts.get(id(value), value) for name, value in kwargs.items()},
        )
        for tensors, local_one, before in zip(lists, parts.values(), given, strict=True):
            for index, made in enumerate(local_one):
                if made is not before[index]:
                    tensors[index] = _divided_like(made, params[index])

    return update


def _divided_alike(lists: list[list[object]]) -> bool:
    """Whether there are DTensors, and gradients and states are divided like their parameters."""
    params = lists[0]
    layouts = [
        (one.device_mesh, one.placements) if isinstance(one, DTensor) else None for one in params
    ]
    return any(layouts) and all(
        (one.device_mesh, one.placements) == layout
        for tensors in lists
        for one, layout in zip(tensors, layouts, strict=False)
        if isinstance(one, DTensor)
    )


def _part(value: object) -> object:
    return local_part(value) if isinstance(value, Tensor) else value


def _divided_like(made: object, parameter: object) -> object:
    """Divide a tensor of the state, which the first step has made, as its parameter is."""
    if not isinstance(parameter, DTensor) or not isinstance(made, Tensor):
        return made
    return DTensor.from_local(
        made,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
