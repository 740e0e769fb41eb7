"""Parameters of another rank's layers, which have a shape but no memory for values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torchbus.plugin import Unsupported
from torchbus.tree import leaves, map_tensors

from torchbus_pipeline._compat import FOREACH, as_plain_tensors

GET, SET = "__get__", "__set__"
DERIVED = ("data", "T", "mT", "H", "mH", "real", "imag")
FACTS = (
    *("__hash__", "dim", "size", "numel", "nelement", "element_size", "stride", "__len__"),
    *("is_floating_point", "is_complex", "is_contiguous", "requires_grad_", "storage_offset"),
    *("register_hook", "register_post_accumulate_grad_hook", "get_device", "untyped_storage"),
)


class Elsewhere(nn.Parameter):
    """A parameter of a layer that another rank has.

    A function of only such tensors returns another such tensor. A function that writes into one
    does nothing, as the rank that has the values does the work. A function that needs the values
    raises Unsupported.
    """

    torchbus_where: str

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
        if name in FACTS or (name in (GET, SET) and owner not in DERIVED):
            with as_plain_tensors():
                return function(*args, **given)
        first = next(one for one in leaves((args, given)) if isinstance(one, Elsewhere))
        if name == "__repr__":
            return f"{tuple(first.shape)}, {first.torchbus_where}"
        if name == SET:
            return _set(args[0], args[1])
        if name.startswith(FOREACH) and name.endswith("_"):
            return _each(function, args, given)
        if _writes_into(name, args):
            return args[0]
        return _derived(function, args, given, first)

    def __deepcopy__(self, memo: dict[int, Any]) -> Elsewhere:
        if id(self) not in memo:
            memo[id(self)] = make(self, self.torchbus_where, self.requires_grad)
        found: Elsewhere = memo[id(self)]
        return found

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_pickling(self.torchbus_where)


def refuse_pickling(where: str) -> NoReturn:
    raise Unsupported(
        "pickling a model under strategy='pipeline' (torch.save(model), or a process that gets"
        f" it): {where}. Save model.state_dict(), which is whole, or save the model after the"
        " block"
    )


def empty(parameter: nn.Parameter, where: str) -> None:
    """Free the values of a parameter. ``where`` is a text about the rank that has them."""
    parameter.data = _filler(parameter)
    parameter.__class__ = Elsewhere
    parameter.torchbus_where = where  # type: ignore[attr-defined]


def fill(parameter: Elsewhere) -> None:
    """Allocate memory for a parameter again, and restore its class. The values are undefined."""
    with as_plain_tensors():
        parameter.data = torch.empty(
            parameter.shape, dtype=parameter.dtype, device=parameter.device
        )
    parameter.__class__ = nn.Parameter  # type: ignore[assignment]
    vars(parameter).pop("torchbus_where", None)


def make(like: Tensor, where: str, requires_grad: bool = False) -> Elsewhere:
    """Return a new such tensor with the shape, dtype and device of ``like``."""
    made = _filler(like).as_subclass(Elsewhere)
    with as_plain_tensors():
        made.requires_grad_(requires_grad)
    made.torchbus_where = where
    return made


def _filler(like: Tensor) -> Tensor:
    """Return a tensor of the same shape and dtype that has only one element in memory.

    Code that bypasses the class reads NaN, if the dtype has it.
    """
    with as_plain_tensors():
        number = float("nan") if like.is_floating_point() or like.is_complex() else 0
        device = "cpu" if like.is_meta else like.device
        return torch.full((), number, dtype=like.dtype, device=device).expand(like.shape)


def _writes_into(name: str, args: tuple[Any, ...]) -> bool:
    in_place = (name.endswith("_") and not name.endswith("__")) or name in (
        "__setitem__",
        *(f"__i{word}__" for word in ("add", "sub", "mul", "truediv")),
    )
    return in_place and bool(args) and isinstance(args[0], Elsewhere)


def _set(tensor: Any, value: Tensor) -> None:
    """Set ``p.data``. Only the shape, dtype and device of the value are used."""
    with as_plain_tensors():
        Tensor.data.__set__(tensor, _filler(value))  # type: ignore[attr-defined]


def _each(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``torch._foreach_*_`` for the tensors that this rank has."""
    here = [not isinstance(one, Elsewhere) for one in args[0]]
    size = len(here)

    def chosen(value: Any) -> Any:
        is_list = isinstance(value, list | tuple) and len(value) == size
        return [one for one, mine in zip(value, here, strict=True) if mine] if is_list else value

    retained, named = [chosen(one) for one in args], {k: chosen(one) for k, one in kwargs.items()}
    if any(isinstance(one, Elsewhere) for one in leaves((retained, named))):
        _refuse(function, next(one for one in args[0] if isinstance(one, Elsewhere)))
    return function(*retained, **named) if retained[0] else args[0]


def _derived(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], first: Elsewhere
) -> Any:
    found = [one for one in leaves((args, kwargs)) if isinstance(one, Tensor)]
    others = [one for one in found if not isinstance(one, Elsewhere)]
    scales = all(one.dim() == 0 for one in others) and max(one.dim() for one in found) > 0
    if others and not scales:
        _refuse(function, first)
    with as_plain_tensors(), torch.no_grad():
        on_meta = map_tensors((tuple(args), kwargs), _to_meta)
        try:
            made = function(*on_meta[0], **on_meta[1])
        except (RuntimeError, NotImplementedError):
            made = None  # the function needs the values
    if not isinstance(made, Tensor | tuple | list):
        _refuse(function, first)
    return map_tensors(made, lambda one: make(one, first.torchbus_where))


def _to_meta(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Elsewhere):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _refuse(function: Callable[..., Any], first: Elsewhere) -> NoReturn:
    name = getattr(function, "__name__", str(function))
    raise Unsupported(
        f"{name} of a parameter under strategy='pipeline': {first.torchbus_where}. Only its layer's"
        " forward may use the values; read them from model.state_dict(), on all ranks, use"
        " weight_decay= of the optimizer for a penalty, or strategy='ddp'"
    )
