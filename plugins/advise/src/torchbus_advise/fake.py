"""Runs a script on fake tensors, which have shapes and dtypes but no storage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.weak import WeakIdKeyDictionary
from torchbus.compat.python import current_frame
from torchbus.plugin import users_frame
from torchbus.tree import leaves

from torchbus_advise._compat import (
    CHECK_GRADIENTS,
    DATA_ITERATOR,
    DISPATCHING,
    LOCAL_SCALAR,
    DispatchMode,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torchbus_advise.facts import ASKED_FOR

Original = Callable[..., object]


@contextmanager
def fake_tensors(answers: Answers) -> Iterator[None]:
    """Make every tensor inside fake: it has a shape and a dtype, and needs no memory.

    Loaders read real data, in the main process, so that batches have their real shapes.
    """
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(replaced(DataLoader, "__init__", _without_workers))
        enter(replaced(DataLoader, "__iter__", _outside))
        enter(replaced(DATA_ITERATOR, "__next__", _outside))
        enter(replaced(Tensor, "__format__", _formatting))
        enter(replaced(Tensor, "tolist", lambda original: _listing(original, answers)))
        enter(replaced(Tensor, "numpy", _as_numpy))
        enter(replaced(torch.utils, "swap_tensors", _moving_data))
        enter(_Mode(allow_non_fake_inputs=True))
        enter(answers)
        yield


@contextmanager
def uncompiled() -> Iterator[None]:
    """Let ``torch.compile`` return the model itself, because only eager operations are counted."""

    def make(original: object) -> object:
        return lambda model=None, **_: (lambda given: given) if model is None else model

    with (
        replaced(torch, "compile", make),
        replaced(torch.nn.Module, "compile", lambda _: lambda *_, **__: None),
    ):
        yield


class _Mode(FakeTensorMode):
    """A mode that is not copied with a model, so that the copy's parameters belong to this mode."""

    def __deepcopy__(self, memo: dict[int, object]) -> _Mode:
        return self


def _without_workers(original: Original) -> Original:
    def __init__(loader: DataLoader[object], *args: object, **kwargs: object) -> None:
        original(loader, *args, **kwargs)
        vars(loader)[ASKED_FOR] = loader.num_workers
        for name, value in (("num_workers", 0), ("timeout", 0), ("persistent_workers", False)):
            vars(loader)[name] = value
        vars(loader)["prefetch_factor"] = None

    return __init__


def _outside(original: Original) -> Original:
    def method(self: object) -> object:
        with unset_fake_temporarily():
            return original(self)

    return method


def _moving_data(original: Original) -> Original:
    """Move data instead of swapping fake parameters, which torch refuses under an optimizer."""

    def swap_tensors(parameter: Tensor, converted: FakeTensor) -> None:
        if not isinstance(parameter, FakeTensor):
            original(parameter, converted)
        elif converted is not parameter:
            parameter.data = converted.data
            parameter.fake_device = converted.fake_device

    return swap_tensors


def _formatting(original: Original) -> Original:
    def __format__(tensor: Tensor, spec: str) -> str:
        if isinstance(tensor, FakeTensor) and not tensor.dim():
            return format(tensor.item(), spec)
        return str(original(tensor, spec))

    return __format__


def _listing(original: Original, answers: Answers) -> Original:
    def tolist(tensor: Tensor) -> object:
        if not isinstance(tensor, FakeTensor):
            return original(tensor)
        return _nested(tensor.shape, answers.value(tensor)) if tensor.dim() else tensor.item()

    return tolist


def _nested(shape: Sequence[int], value: object) -> object:
    return [_nested(shape[1:], value) for _ in range(shape[0])] if shape else value


def _as_numpy(original: Original) -> Original:
    def numpy(tensor: Tensor, *, force: bool = False) -> object:
        if not isinstance(tensor, FakeTensor):
            return original(tensor, force=force)
        with unset_fake_temporarily():
            return torch.ones(tensor.shape, dtype=tensor.dtype).numpy()

    return numpy


aten = torch.ops.aten
Operator = Callable[..., object]
Number = bool | int | float
Answer = TypeVar("Answer")
FAULTS = (aten.isnan.default, aten.isinf.default)
BETWEEN = ("torchbus_advise", "torch.utils.flop_counter", *DISPATCHING)
"""Modules between a reader of a value and this one."""
OPPOSITES = (aten.logical_not.default, aten.bitwise_not.default)


class Answers(DispatchMode):
    """Invents the values of fake tensors that a script reads.

    ``given`` counts the answers by line of the script.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given: Counter[str] = Counter()
        self._noughts = WeakIdKeyDictionary()
        self._replies: dict[object, Callable[..., object]] = {
            LOCAL_SCALAR: lambda tensor: self._said(self.value(tensor)),
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
        """Return the value invented for one element of a tensor: 0 or 1, in its dtype."""
        number = 0 if tensor in self._noughts else 1
        if tensor.dtype == torch.bool:
            return bool(number)
        return number if not (tensor.is_floating_point() or tensor.is_complex()) else float(number)

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
        """Remember results that count as 0: tests for faults, and results made only from these."""
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
    """Whether torch itself reads the value, as an optimizer reads its count of steps."""
    frame: FrameType | None = current_frame(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(BETWEEN):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("torch.")


@contextmanager
def replaced(owner: object, name: str, make: Callable[[Any], object]) -> Iterator[None]:
    """Set ``owner.name`` to ``make(original)`` inside the block."""
    inherited = name not in vars(owner)
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        delattr(owner, name) if inherited else setattr(owner, name, original)
