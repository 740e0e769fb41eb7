"""What of torch and of a script goes on as ever among fake tensors, and what is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from torchbus_advise._compat import (
    DATA_ITERATOR,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torchbus_advise.fake.answers import Answers
from torchbus_advise.observing.loading import ASKED_FOR
from torchbus_advise.replacing import replaced

Original = Callable[..., object]


@contextmanager
def fake_tensors(answers: Answers) -> Iterator[None]:
    """Every tensor made inside is fake: it has a shape and a dtype, and needs no memory.

    Loaders read for real, in the main process, so that batches have the shapes of the real ones.
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
    """``torch.compile`` gives back what it is given: only eager operations can be counted."""

    def make(original: object) -> object:
        return lambda model=None, **_: (lambda given: given) if model is None else model

    with (
        replaced(torch, "compile", make),
        replaced(torch.nn.Module, "compile", lambda _: lambda *_, **__: None),
    ):
        yield


class _Mode(FakeTensorMode):
    """A copied model stays in the same world: else its parameters would belong to a copy of it."""

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
    """``model.to(...)`` swaps fake parameters, which torch refuses once an optimizer holds them."""

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
