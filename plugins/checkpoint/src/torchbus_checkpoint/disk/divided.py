"""States whose tensors are in sharded files; a placeholder in the state names each tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbus_checkpoint.loop.contents import LoopContents, parameters
from torchbus_checkpoint.state.plain import State, is_part

NOTE = "torchbus part"
OPTIMIZERS = "optimizers"
Groups = dict[str, dict[str, Tensor]]


def split(weights: dict[str, State], training: State, is_main: bool) -> tuple[State, Groups]:
    """Return the content of the training file, and the tensors of models and optimizers by group.

    Rank 0 writes the tensors that are not sharded.
    """
    groups: Groups = {}

    def put(group: str, value: object) -> object:
        groups[group] = {}

        def note(tensor: Tensor, path: str) -> State:
            if is_main or is_part(tensor):
                groups[group][path] = tensor
            return {NOTE: [group, path], "shape": list(tensor.shape), "dtype": tensor.dtype}

        return _walk(value, "", lambda item: isinstance(item, Tensor), note)

    models = [put(name.replace(".", "_"), state) for name, state in weights.items()]
    return (
        training
        | {
            "groups": list(groups),
            "models": models,
            "optimizers": put(OPTIMIZERS, training["optimizers"]),
        },
        groups,
    )


def prepared(
    saved: State, contents: LoopContents, index: Mapping[str, DividedTensor]
) -> tuple[State, list[State], Groups]:
    """Return the saved state, the states of the models, and the tensors that are still to be read.

    These tensors are sharded like those of this loop. Their shapes and dtypes come from ``index``,
    which was compared with the sizes of the files.
    """
    groups: Groups = {}
    owners = _owners(saved["groups"], contents)

    def tensor(note: State, _: str) -> Tensor:
        group, path = note[NOTE]
        dtype, shape = index[f"{group}.{path}"][:2]
        owner = owners.get((group, path), owners.get((group, path.rpartition("/")[0])))
        made = groups.setdefault(group, {})[path] = _empty(torch.Size(shape), dtype, owner)
        return made

    models, optimizers = _walk(
        [saved["models"], saved["optimizers"]],
        "",
        lambda item: type(item) is dict and NOTE in item,
        tensor,
    )
    return saved | {"optimizers": optimizers}, models, groups


def _walk(
    value: Any, path: str, is_it: Callable[[object], bool], change: Callable[[Any, str], object]
) -> Any:
    """Replace each part for which ``is_it`` is true. ``path`` is its place, as in ``0/state/1``."""
    if is_it(value):
        return change(value, path)
    inside = f"{path}/" if path else ""
    if type(value) in (list, tuple):
        return type(value)(
            _walk(item, f"{inside}{index}", is_it, change) for index, item in enumerate(value)
        )
    if isinstance(value, dict):
        return type(value)(
            {key: _walk(item, f"{inside}{key}", is_it, change) for key, item in value.items()}
        )
    return value


def _owners(names: list[str], contents: LoopContents) -> dict[tuple[str, str], Tensor]:
    """Return, for each saved tensor, the tensor of this loop that is sharded in the same way.

    It is the model's tensor or, for an optimizer's state or a gradient, the parameter.
    """
    found: dict[tuple[str, str], Tensor] = {}
    for group, (_, model) in zip(names, contents.models, strict=False):
        for key, value in model.state_dict().items():
            if isinstance(value, Tensor):
                found[group, key] = value
    for number, (_, optimizer) in enumerate(contents.optimizers):
        for index, parameter in enumerate(parameters(optimizer)):
            found[OPTIMIZERS, f"{number}/state/state/{index}"] = parameter
            found[OPTIMIZERS, f"{number}/gradients/{index}"] = parameter
    return found


def _empty(shape: torch.Size, dtype: torch.dtype, owner: Tensor | None) -> Tensor:
    if owner is not None and is_part(owner) and owner.shape == shape:
        return torch.empty_like(owner.detach(), dtype=dtype)
    return torch.empty(shape, dtype=dtype)


Shape = tuple[int, ...]


class TensorPart(NamedTuple):
    """A part of a tensor: its offsets in the whole tensor, its shape, and its place on disk.

    ``place`` begins with the name of the file.
    """

    offsets: Shape
    shape: Shape
    place: Any


class DividedTensor(NamedTuple):
    """A tensor whose parts are in sharded files."""

    dtype: torch.dtype
    shape: Shape
    parts: list[TensorPart]


def numbers(value: Iterable[Any]) -> Shape:
    """Return sizes or offsets as a tuple. Raises ValueError if they are something else."""
    found = tuple(value)
    if any(type(one) is not int or one < 0 for one in found):
        raise ValueError(f"{found!r} in it are not sizes")
    return found


def refuse_gaps(name: str, one: DividedTensor) -> None:
    """Raise ValueError unless the parts cover each number of the tensor exactly once."""
    for part in one.parts:
        ends = [at + size for at, size in zip(part.offsets, part.shape, strict=True)]
        if len(ends) != len(one.shape) or any(map(int.__gt__, ends, one.shape)):
            raise ValueError(f"a part of {name} is outside of it")
    if sum(prod(part.shape) for part in one.parts) != prod(one.shape):
        raise ValueError(f"the parts of {name} are not the whole of it")
    if one.shape and _is_twice([part for part in one.parts if prod(part.shape)]):
        raise ValueError(f"parts of {name} overlap")


def _is_twice(parts: list[TensorPart]) -> bool:
    """Whether two parts overlap. Compares only parts that overlap in the first dimension."""
    around: list[TensorPart] = []
    for part in sorted(parts, key=lambda one: one.offsets):
        around = [one for one in around if one.offsets[0] + one.shape[0] > part.offsets[0]]
        if any(_overlap(one, part) for one in around):
            return True
        around.append(part)
    return False


def _overlap(one: TensorPart, other: TensorPart) -> bool:
    return all(
        a < b + other_size and b < a + size
        for a, size, b, other_size in zip(
            one.offsets, one.shape, other.offsets, other.shape, strict=True
        )
    )
