"""Parameters under stage 3, which are empty except while a module computes with them.

An operation on an empty tensor succeeds with a wrong result: a clamp has no effect, a norm is 0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module
from torchbus.plugin import Unsupported
from torchbus.tree import leaves

from torchbus_deepspeed import _compat

EMPTY = (
    "{} of {}: under strategy='{}', parameters are empty outside of the forward of their own module"
    " (ZeRO stage 3), so this would have no effect, or give a wrong number. Read the numbers from"
    " model.state_dict(), which is whole, and write them with model.load_state_dict(), or use"
    " zero_optimization.stage=2"
)
GET, SET = "__get__", "__set__"
VALUES = ("data", "T", "mT", "H", "mH", "real", "imag")
"""Attributes that need the values. All others are facts, such as the dtype."""
FACTS = (
    "__hash__",
    "__repr__",
    "__deepcopy__",
    _compat.SHALLOW_COPY,
    "data_ptr",
    "element_size",
    "get_device",
    "has_names",
    "is_complex",
    "is_contiguous",
    "is_floating_point",
    "is_pinned",
    "register_hook",
    "register_post_accumulate_grad_hook",
    "requires_grad_",
    "retain_grad",
    "storage_offset",
    "untyped_storage",
)
SHAPES = ("__len__", "dim", "ndim", "ndimension", "nelement", "numel", "shape", "size", "stride")
"""Functions and attributes that are answered with the whole shape of the parameter."""
ALIASES = (*VALUES, "detach", "to", "cpu", "cuda", "float", "double", "half", "bfloat16", "type")
"""The functions that torch's modules apply to all parameters.

They do so in ``state_dict``, ``load_state_dict`` and ``to``.
"""


class Partitioned(nn.Parameter):
    """A parameter that raises Unsupported when its values are read while it is empty."""

    ds_shape: torch.Size
    torchbus_called: tuple[str, str]
    """The name of the parameter, and the name of the strategy."""

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given, (name, is_fact) = kwargs or {}, _kind(function)
        with _compat.as_plain_tensors():
            empty = None if is_fact else _first_empty((*args, *given.values()))
            if empty is None:
                return function(*args, **given)
            if name in SHAPES:
                return function(_on_meta(empty), *args[1:], **given)
            if not (name in ALIASES or _is_onto_itself(name, args)):
                raise Unsupported(EMPTY.format(name, *empty.torchbus_called))
            return _alias(function(*args, **given), empty)


class AccessGuard:
    """Switches a model's parameters to the raising class while the loop's code runs.

    Inside torch and DeepSpeed they have torch's class, because the raising class would cost time.
    """

    def __init__(self, model: Module, strategy: str) -> None:
        self._parameters = list(model.parameters())
        for name, parameter in model.named_parameters():
            parameter.torchbus_called = (name, strategy)  # type: ignore[attr-defined]
        self._pauses = 0
        self._become(Partitioned)
        self._hooks = [
            model.register_forward_pre_hook(self._before, prepend=True),
            model.register_forward_hook(self._after, always_call=True),
        ]

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._pause(1)
        try:
            yield
        finally:
            self._pause(-1)

    def end(self) -> None:
        """Restore torch's parameter class."""
        for hook in self._hooks:
            hook.remove()
        self._become(nn.Parameter)
        for parameter in self._parameters:
            del parameter.torchbus_called  # type: ignore[attr-defined]

    def _before(self, model: Module, inputs: object) -> None:
        self._pause(1)

    def _after(self, model: Module, inputs: object, outputs: object) -> None:
        self._pause(-1)

    def _pause(self, change: int) -> None:
        was, self._pauses = bool(self._pauses), max(self._pauses + change, 0)
        if was != bool(self._pauses):
            self._become(nn.Parameter if self._pauses else Partitioned)

    def _become(self, cls: type[nn.Parameter]) -> None:
        for parameter in self._parameters:
            parameter.__class__ = cls


def is_empty(value: object) -> bool:
    """Whether a value is a parameter of stage 3 that is empty now."""
    return isinstance(value, Partitioned) and not _compat.is_gathered(value)


def _first_empty(given: Iterable[object]) -> Partitioned | None:
    for one in given:
        for leaf in leaves(one) if isinstance(one, list | tuple) else (one,):
            if isinstance(leaf, Partitioned) and not _compat.is_gathered(leaf):
                return leaf
    return None


def _kind(function: Callable[..., Any]) -> tuple[str, bool]:
    """Return the function's name, and whether it reads an attribute that needs no values."""
    name = getattr(function, "__name__", "")
    attribute = getattr(getattr(function, "__self__", None), "__name__", "")
    if name in (GET, SET):
        return attribute, name == SET or attribute not in (*VALUES, *SHAPES)
    return name, name in FACTS


def _is_onto_itself(name: str, args: tuple[Any, ...]) -> bool:
    """Whether ``load_state_dict`` copies values that are already loaded into the shards."""
    return name == "copy_" and all(isinstance(one, Partitioned) for one in args[:2])


def _alias(made: Any, of: Partitioned) -> Any:
    """Mark a tensor that is derived from an empty parameter, so that reading its values raises."""
    if type(made) is Tensor:
        made = made.as_subclass(Partitioned)
        made.torchbus_called = of.torchbus_called
        made.ds_shape = _compat.shape_of(of)
    return made


def _on_meta(empty: Partitioned) -> Tensor:
    """Return a tensor on the meta device that has the whole shape, and the dtype."""
    return torch.empty(_compat.shape_of(empty), dtype=empty.dtype, device="meta")
