"""A lazy tensor, computed in backward or when the loop reads its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torchbus.compat.torch_names import version
from torchbus.plugin import Unsupported
from torchbus.tree import leaves, map_tensors

from torchbus_pipeline._compat import as_plain_tensors

GET = "__get__"
FACTS = (
    *("shape", "dtype", "requires_grad", "ndim", "layout", "is_sparse", "is_nested"),
    *("is_quantized", "is_mkldnn", "retains_grad", "grad", "names"),
)
METHODS = (
    *("dim", "size", "numel", "nelement", "__len__", "is_floating_point", "is_complex"),
    *("stride", "is_contiguous", "__hash__", "element_size"),
)
READS = (
    *("item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__repr__"),
    *("__format__", "__array__", "register_hook", "retain_grad", "requires_grad_", "to"),
    *("__deepcopy__", "__reduce_ex__", "cpu", "cuda"),
)


class OutputSource(Protocol):
    """The source of lazy outputs."""

    device: torch.device

    def numbers(self) -> Tensor:
        """Compute the output now, as a whole, with its graph. All ranks must call this."""

    def value_of(self, later: Later) -> Tensor | None:
        """Return the value of an operand of the loss after a 1F1B backward, or else None.

        All ranks must call this.
        """


class Node(NamedTuple):
    """A recorded operation of the loop on lazy tensors."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    trains: bool
    versions: tuple[int, ...]


class Later(Tensor):
    """A lazy tensor, which is a tensor on the meta device with the shape and the dtype.

    ``node`` is the operation that makes it, or None for a model's output. ``value`` is None until
    it is known.
    """

    node: Node | None
    source: OutputSource
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


def output(source: OutputSource, shape: tuple[int, ...], dtype: torch.dtype) -> Later:
    """Return the lazy tensor that the loop gets for an output of this shape."""
    return _make(torch.empty(shape, dtype=dtype, device="meta"), source, None)


def laters_in(nested: object) -> list[Later]:
    return [leaf for leaf in leaves(nested) if isinstance(leaf, Later)]


def numbers_of(nested: Any) -> Any:
    """Replace lazy tensors in a nested structure with their values. All ranks must call this."""
    return map_tensors(nested, lambda one: number(one) if isinstance(one, Later) else one)


def number(later: Later) -> Tensor:
    """Return the values of a lazy tensor, and compute them if needed. All ranks must call this."""
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


def _make(meta: Tensor, source: OutputSource, node: Node | None) -> Later:
    made = meta.detach().as_subclass(Later)
    with as_plain_tensors():
        made.requires_grad_(meta.is_floating_point() and (node is None or node.trains))
    made.source, made.node, made.value = source, node, None
    return made


def _reads(name: str, owner: str, found: list[Later]) -> bool:
    """Whether the operation needs values, or can't be replayed for a micro-batch."""
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
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    source: OutputSource,
) -> Later | None:
    """Record an operation, and return its lazy result.

    Returns None unless the result is one tensor whose shape does not depend on values.
    """
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
    """Raise Unsupported if an operand has changed since it was recorded."""
    if _versions(node.args, node.kwargs) != node.versions:
        name = getattr(node.function, "__name__", str(node.function))
        raise Unsupported(
            f"the result of {name} is read after a tensor that it uses has changed, such as by"
            " optimizer.step(): under strategy='pipeline' with this schedule it is computed when it"
            " is read. Read it before the change, or use schedule='gpipe'"
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
    """Run ``loss.backward()`` by ``torch.autograd.backward``, which the session patches."""
    _refuse_local_function(loss)
    torch.autograd.backward(loss, gradient, retain_graph, create_graph, inputs=inputs)


def _refuse_local_function(later: Later) -> None:
    """Raise Unsupported for the result of a torch.autograd.Function.

    Its operations were recorded, but not its backward.
    """
    with as_plain_tensors():
        made_by = later.grad_fn
    if made_by is not None:
        raise Unsupported(
            f"{type(made_by).__name__.removesuffix('Backward')}, a torch.autograd.Function, gets"
            " the output of a model under strategy='pipeline' with schedule='1f1b', which can't"
            " call its backward for each micro-batch: use schedule='gpipe'"
        )


OF_A_PART = (RuntimeError, ValueError, IndexError, TypeError)
"""The errors that a loss raises for a part of the batch if it contains the number of samples."""


def bounds_of(rows: int, count: int) -> list[tuple[int, int]]:
    """Return the start and end row of each micro-batch."""
    sizes = [len(part) for part in torch.empty(rows).tensor_split(count)]
    ends = [sum(sizes[:number]) for number in range(count + 1)]
    return list(pairwise(ends))


def weights_of(kind: str, rows: int, count: int) -> list[float]:
    """Return the weight of each micro-batch's loss."""
    return [
        (end - start) / rows if kind == "mean" else 1.0 for start, end in bounds_of(rows, count)
    ]


def kind_of(replay: LossReplay, output: Tensor, count: int) -> str | None:
    """Return "mean" or "sum", or None if the loss is neither for this output.

    All ranks get the same result.
    """
    rows = len(output)
    if count < 2:
        return None
    try:
        whole, of_whole = _slope(replay, output.detach(), 0, rows)
        parts = [
            _slope(replay, output.detach()[start:end], start, end)
            for start, end in bounds_of(rows, count)
        ]
    except OF_A_PART:
        return None
    for kind in ("mean", "sum"):
        weights = weights_of(kind, rows, count)
        total = sum(weight * loss for weight, (loss, _) in zip(weights, parts, strict=True))
        slopes = [weight * slope for weight, (_, slope) in zip(weights, parts, strict=True)]
        if agree(total, whole) and agree(torch.cat(slopes), of_whole):
            return kind
    return None


def agree(ours: Tensor | float, whole: Tensor) -> bool:
    """Whether two numbers or tensors differ only by the rounding of sums."""
    limit = torch.finfo(whole.dtype).eps ** 0.6
    difference = (torch.as_tensor(ours) - whole).abs().max()
    return bool(difference <= limit * whole.abs().max() + 1e-30)


def _slope(replay: LossReplay, output: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Return the loss of some rows, and its gradient with respect to the output."""
    with torch.enable_grad():
        leaf = output.clone().requires_grad_()
        loss = replay.loss_of(leaf, start, end)
        if loss.dim():
            raise ValueError("backward was called on more than one number")
        (slope,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), slope


def total_of(losses: Sequence[Tensor], kind: str, rows: int) -> Tensor:
    """Return the loss of a batch, computed from the losses of its micro-batches."""
    weights = weights_of(kind, rows, len(losses))
    return torch.stack([weight * one for weight, one in zip(weights, losses, strict=True)]).sum()


class LossReplay:
    """The operations between a model's output and the loss.

    ``outside`` has the other tensors that they use and that require gradients, such as the weights
    of a head. In their place, the replay uses ``inner``, in which gradients add up. ``path`` has
    the lazy operands of the loss, and ``values`` their values in the last replay, by id.
    """

    def __init__(self, loss: Later, rows: int) -> None:
        self._loss, self._rows = loss, rows
        self.path = path_of(loss)
        self.values: dict[int, Tensor] = {}
        self.outside = list({id(one): one for one in _outside(self.path)}.values())
        self.inner = [one.detach().requires_grad_() for one in self.outside]
        self._inner_of = {
            id(one): inner for one, inner in zip(self.outside, self.inner, strict=True)
        }

    def loss_of(self, output: Tensor, start: int, end: int) -> Tensor:
        """Return the loss of the rows from ``start`` to ``end``, whose output is ``output``."""
        known: dict[int, Tensor] = {}
        self.values = known

        def value_of(later: Later) -> Tensor:
            node = later.node
            if node is None:
                known[id(later)] = output
            elif id(later) not in known:
                take = self._taker(node, value_of, start, end)
                args, kwargs = map_tensors((node.args, node.kwargs), take)
                with torch.set_grad_enabled(node.trains and torch.is_grad_enabled()):
                    known[id(later)] = node.function(*args, **kwargs)
            return known[id(later)]

        return value_of(self._loss)

    def _taker(
        self, node: Any, value_of: Callable[[Later], Tensor], start: int, end: int
    ) -> Callable[[Tensor], Tensor]:
        """Return a function that replaces a tensor with its rows for these samples.

        A tensor is cut like the output if it has one or more rows for each sample.
        """
        lengths = {len(one) for one in laters_in((node.args, node.kwargs)) if one.dim()}
        whole = (start, end) == (0, self._rows)

        def take(tensor: Tensor) -> Tensor:
            if isinstance(tensor, Later):
                return value_of(tensor)
            inner = self._inner_of.get(id(tensor), tensor)
            if whole or not tensor.dim() or len(tensor) not in lengths or len(tensor) % self._rows:
                return inner
            each = len(tensor) // self._rows
            return inner[each * start : each * end]

        return take


def path_of(loss: Later) -> list[Later]:
    """Return all lazy operands of the loss, and the loss itself."""
    return list(_path(loss, {}).values())


def _path(later: Later, found: dict[int, Later]) -> dict[int, Later]:
    """Return a lazy tensor and all its lazy operands, by id."""
    if id(later) not in found:
        found[id(later)] = later
        for one in laters_in((later.node.args, later.node.kwargs)) if later.node else ():
            _path(one, found)
    return found


def _outside(path: list[Later]) -> list[Tensor]:
    nodes = [later.node for later in path if later.node is not None and later.node.trains]
    return [
        leaf
        for node in nodes
        for leaf in leaves((node.args, node.kwargs))
        if isinstance(leaf, Tensor) and not isinstance(leaf, Later) and leaf.requires_grad
    ]
