"""Values that a script reads from fake tensors, which have none: plausible ones are answered.

Numbers are 1 and conditions are True; what asks for something amiss (``isnan``, ``isinf``, the
check of a GradScaler) is answered 0 and False. A selection by a mask selects everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torchbus.plugin import users_frame
from torchbus.tree import leaves

from torchbus_advise._compat import (
    CHECK_GRADIENTS,
    DISPATCHING,
    LOCAL_SCALAR,
    DispatchMode,
    FakeTensor,
    current_frame,
    unset_fake_temporarily,
)

aten = torch.ops.aten
Operator = Callable[..., object]
Number = bool | int | float
Answer = TypeVar("Answer")
FAULTS = (aten.isnan.default, aten.isinf.default)
BETWEEN = ("torchbus_advise", "torch.utils.flop_counter", *DISPATCHING)
"""Modules through which a call comes here."""
OPPOSITES = (aten.logical_not.default, aten.bitwise_not.default)


class Answers(DispatchMode):
    """Lies on top of a FakeTensorMode. ``given``: how many answers each line of the script got."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given: Counter[str] = Counter()
        self._noughts = WeakIdKeyDictionary()
        self._replies: dict[object, Callable[..., object]] = {
            LOCAL_SCALAR: self._number,
            aten.equal.default: lambda *_: self._said(True),
            aten.nonzero.default: self._all_places,
            aten.masked_select.default: self._all_elements,
            aten.index.Tensor: self._indexed,
        }

    def __torch_dispatch__(
        self,
        func: Operator,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        tensors = [one for one in leaves([args, kwargs]) if isinstance(one, Tensor)]
        is_fake = any(isinstance(one, FakeTensor) for one in tensors)
        if func in self._replies and tensors and not is_fake:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func in self._replies:
            return self._replies[func](*args, **kwargs)
        result = func(*args, **kwargs)
        self._follow(func, args, tensors, result)
        return result

    def value(self, tensor: Tensor) -> Number:
        """The answer for one element."""
        number = 0 if tensor in self._noughts else 1
        if tensor.dtype == torch.bool:
            return bool(number)
        return number if not (tensor.is_floating_point() or tensor.is_complex()) else float(number)

    def _number(self, tensor: Tensor) -> Number:
        return self._said(self.value(tensor))

    def _said(self, answer: Answer) -> Answer:
        frame, _ = users_frame()
        if not _is_asked_by_torch():
            self.given[f"{frame.f_code.co_filename}:{frame.f_lineno}"] += 1
        return answer

    def _all_places(self, tensor: Tensor) -> Tensor:
        rows = max(tensor.numel(), 1) if tensor.dim() == 0 else tensor.numel()
        return self._said(tensor.new_empty((rows, tensor.dim()), dtype=torch.int64))

    def _all_elements(self, tensor: Tensor, mask: Tensor) -> Tensor:
        return self._said(
            tensor.expand(torch.broadcast_shapes(tensor.shape, mask.shape)).reshape(-1)
        )

    def _indexed(self, tensor: Tensor, indices: list[Tensor | None]) -> object:
        if not any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in indices):
            return aten.index.Tensor(tensor, indices)
        places: list[Tensor | None] = []
        for one in indices:
            if one is not None and one.dtype in (torch.bool, torch.uint8):
                places += self._all_places(one).unbind(1)
            else:
                places.append(one)
        return aten.index.Tensor(tensor, places)

    def _follow(
        self, func: Operator, args: tuple[object, ...], tensors: list[Tensor], result: object
    ) -> None:
        """Note what would be nought: faults, and what is made of nothing but these."""
        if func is CHECK_GRADIENTS:
            self._noughts[args[1]] = True
        if not isinstance(result, Tensor) or func in OPPOSITES:
            return
        if _asks_for_a_fault(func, args) or (
            tensors and all(one in self._noughts for one in tensors)
        ):
            self._noughts[result] = True


def _asks_for_a_fault(func: Operator, args: tuple[object, ...]) -> bool:
    if func in FAULTS:
        return True
    if func is aten.eq.Scalar:
        return args[1] in (float("inf"), float("-inf"))
    return func is aten.ne.Tensor and args[0] is args[1]


def _is_asked_by_torch() -> bool:
    """Whether the value is read by torch itself, as an optimizer reads its count of steps."""
    frame: FrameType | None = current_frame(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(BETWEEN):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("torch.")
