"""A tensor that is computed in backward, or when the loop asks for its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torchbus.plugin import Unsupported
from torchbus.tree import leaves, map_tensors

from torchbus_pipeline._compat import as_plain_tensors, version

GET = "__get__"
FACTS: tuple[str, ...] = (
    "shape",
    "dtype",
    "requires_grad",
    "ndim",
    "layout",
    "is_sparse",
    "is_nested",
)
FACTS += ("is_quantized", "is_mkldnn", "retains_grad", "grad", "names")
METHODS: tuple[str, ...] = (
    "dim",
    "size",
    "numel",
    "nelement",
    "__len__",
    "is_floating_point",
    "is_complex",
)
METHODS += ("stride", "is_contiguous", "__hash__", "element_size")
READS: tuple[str, ...] = (
    "item",
    "tolist",
    "numpy",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
    "__repr__",
)
READS += ("__format__", "__array__", "register_hook", "retain_grad", "requires_grad_", "to")
READS += ("__deepcopy__", "__reduce_ex__", "cpu", "cuda")


class Source(Protocol):
    """Where outputs come from that are computed later."""

    device: torch.device

    def numbers(self) -> Tensor:
        """The output, with its graph: computed now, as a whole. All ranks call it."""

    def value_of(self, later: Later) -> Tensor | None:
        """After a backward in turns, the numbers of what the loss was made of, on all ranks."""


class Node(NamedTuple):
    """An operation that the loop has called with such tensors."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    trains: bool
    versions: tuple[int, ...]


class Later(Tensor):
    """``node``: how it was made, None for the output itself. ``value``: its numbers, if known.

    Underneath is a tensor on the meta device, which has the shape and the dtype.
    """

    node: Node | None
    source: Source
    value: Tensor | None

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given, name = dict(kwargs or {}), getattr(function, "__name__", "")
        owner = getattr(getattr(function, "__self__", None), "__name__", "")
        if name in METHODS or (name == GET and owner in FACTS):
            with as_plain_tensors():
                return function(*args, **given)
        found = laters_in((args, given))
        if name == GET and owner in ("device", "is_leaf", "is_meta"):
            return found[0].source.device if owner == "device" else False
        if function is Tensor.backward:
            return _backward(*args, **given)
        for one in found:
            _refuse_local_function(one)
        if not _reads(name, owner, found):
            made = _noted(function, args, given, found[0].source)
            if made is not None:
                return made
        return function(*numbers_of(args), **numbers_of(given))


def output(source: Source, shape: tuple[int, ...], dtype: torch.dtype) -> Later:
    """What the loop gets instead of an output of this shape."""
    return _make(torch.empty(shape, dtype=dtype, device="meta"), source, None)


def laters_in(nested: object) -> list[Later]:
    return [leaf for leaf in leaves(nested) if isinstance(leaf, Later)]


def numbers_of(nested: Any) -> Any:
    """The same nesting, with numbers instead of such tensors. All ranks call it."""
    return map_tensors(nested, lambda one: number(one) if isinstance(one, Later) else one)


def number(later: Later) -> Tensor:
    """Its numbers. If they are not known yet, the output is computed now. All ranks call it."""
    if later.value is None:
        later.value = later.source.value_of(later)
    if later.value is None:
        node = later.node
        if node is None:
            later.value = later.source.numbers()
        else:
            refuse_changed(node)
            with torch.set_grad_enabled(node.trains):
                later.value = node.function(*numbers_of(node.args), **numbers_of(node.kwargs))
    return later.value


def _make(meta: Tensor, source: Source, node: Node | None) -> Later:
    made = meta.detach().as_subclass(Later)
    with as_plain_tensors():
        made.requires_grad_(meta.is_floating_point() and (node is None or node.trains))
    made.source, made.node, made.value = source, node, None
    return made


def _reads(name: str, owner: str, found: list[Later]) -> bool:
    """Whether the loop wants numbers, or something that can't be done again for a micro-batch."""
    in_place = name.endswith("_") and not name.endswith("__")
    in_place = in_place or name.startswith("__i") or name in ("__setitem__", "__set__")
    return (
        in_place
        or name in READS
        or (name == GET and owner not in ("T", "mT"))
        or torch.is_autocast_enabled(found[0].source.device.type)
        or len({id(one.source) for one in found}) > 1
    )


def _noted(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], source: Source
) -> Later | None:
    """The outcome of an operation, if it is one tensor whose shape does not depend on numbers."""
    try:
        with as_plain_tensors(), torch.no_grad():
            on_meta = map_tensors((tuple(args), kwargs), _to_meta)
            meta = function(*on_meta[0], **on_meta[1])
    except Exception:
        return None
    if type(meta) is not Tensor or not meta.is_meta:
        return None
    versions = _versions(args, kwargs)
    node = Node(function, tuple(args), kwargs, torch.is_grad_enabled(), versions)
    return _make(meta, source, node)


def _versions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    found = leaves((args, kwargs))
    return tuple(
        version(one) for one in found if isinstance(one, Tensor) and not isinstance(one, Later)
    )


def refuse_changed(node: Node) -> None:
    """Raise Unsupported if a tensor that was to be used has other values now."""
    if _versions(node.args, node.kwargs) != node.versions:
        name = getattr(node.function, "__name__", str(node.function))
        raise Unsupported(
            f"the outcome of {name} is read after a tensor that it uses has changed, such as by"
            " optimizer.step(): under strategy='pipeline' with this schedule it is computed when it"
            " is read. Read it before that, or use schedule='gpipe'"
        )


def _to_meta(tensor: Tensor) -> Tensor:
    plain = tensor.as_subclass(Tensor) if isinstance(tensor, Later) else tensor
    return plain.detach().to("meta")


def _backward(
    loss: Later,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """``loss.backward()``, as Tensor has it: the session hears ``torch.autograd.backward``."""
    _refuse_local_function(loss)
    torch.autograd.backward(loss, gradient, retain_graph, create_graph, inputs=inputs)


def _refuse_local_function(later: Later) -> None:
    """Raise Unsupported for the outcome of a torch.autograd.Function.

    Its operations were noted, and its own backward was not.
    """
    with as_plain_tensors():
        made_by = later.grad_fn
    if made_by is not None:
        raise Unsupported(
            f"{type(made_by).__name__.removesuffix('Backward')}, a torch.autograd.Function, gets"
            " the output of a model under strategy='pipeline' with schedule='1f1b', which can't"
            " call its backward for each micro-batch: use schedule='gpipe'"
        )
