"""Private names of torch, torchmetrics and CPython that checkpoints use.

Nothing else in this package uses a private name. All were seen in torch 2.6 to 2.13, and in Python
3.10 to 3.13.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, SequentialLR
from torchbus.compat.required import require
from torchbus.plugin import UsageError

UPDATE_COUNT = "_update_count"
"""The attribute that counts the updates of a metric of torchmetrics.

Without it: a resumed metric counts from 0.
"""
VALUE = "_computed"
"""The attribute with the last result of a metric of torchmetrics.

Without it: a resumed metric may return a result from before the resume, until its next update.
"""

LAYOUT = ("torch.serialization", "_get_layout")
"""A function that the index of old checkpoints in parts names. Without it: no index names it."""


def num_bytes_of(storage: str) -> int:
    """Return the bytes of each number in a storage of this class of torch.

    The public ``dtype`` warns. Without ``_dtype``: CheckpointError at checkpoints of formats 1, 2.
    """
    dtype: torch.dtype = getattr(vars(torch)[storage], "_dtype", torch.uint8)
    return dtype.itemsize


def sparse_parts(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices and values of a sparse tensor, with their shapes and dtypes.

    Unlike with the public methods, the tensor need not be coalesced. Without ``_indices`` or
    ``_values``: AttributeError at a checkpoint with sparse gradients.
    """
    return tensor._indices(), tensor._values()


def uncompiled(model: Module) -> Module:
    """Return the model inside a ``torch.compile`` wrapper, or the model itself.

    The keys of its ``state_dict`` have no prefix. Without ``_orig_mod``: UsageError at the first
    checkpoint of a compiled model.
    """
    if type(model).__module__.startswith("torch._dynamo."):
        require(
            model, "_orig_mod", "gives a compiled model's weights the names of the script's own"
        )
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, Module) else model


PARTS = "_schedulers"
"""The parts of a SequentialLR or ChainedScheduler, as an attribute and in the state.

Without it: UsageError at the first checkpoint with a scheduler.
"""


def parts_of(scheduler: LRScheduler) -> list[LRScheduler]:
    """Return the schedulers that are parts of a scheduler.

    Without ``_schedulers``: UsageError at the first checkpoint with a scheduler.
    """
    require(SequentialLR, PARTS, "finds the schedulers that are parts of another one")
    return list(getattr(scheduler, PARTS, ()))


def load_hooks(optimizer: Optimizer) -> list[Callable[..., object]]:
    """Hooks that may change a state before the optimizer loads it.

    Without the name: AttributeError when a checkpoint is loaded.
    """
    return [*optimizer._optimizer_load_state_dict_pre_hooks.values()]


def mark_stepped(optimizers: Iterable[Optimizer]) -> None:
    """Mark optimizers that stepped before the checkpoint, as torch does at a step.

    Without ``_opt_called``: torch warns that a scheduler's first step precedes the optimizer's.
    """
    for optimizer in optimizers:
        setattr(optimizer, "_opt_called", True)  # noqa: B010


def open_iterator(loader: Any) -> None:
    """Start a loader's persistent workers.

    Without ``_get_iterator``: AttributeError at the first pass of a resumed run.
    """
    loader._iterator = loader._get_iterator()


def has_iterator(loader: Any) -> bool:
    """Whether a loader's persistent workers have been started.

    Without ``_iterator``: AttributeError at their first pass.
    """
    return loader._iterator is not None


def kinds_of_dcp() -> tuple[Any, ...]:
    """Return further classes that newer plans of torch.distributed.checkpoint contain.

    The import is slow. ``BytesIOWriteData`` is not in every torch; older plans do not use it.
    """
    from torch.distributed.checkpoint import planner

    newer = getattr(planner, "BytesIOWriteData", None)
    return () if newer is None else (newer,)


@cache
def loops_in(code: CodeType) -> list[tuple[int, int, int, tuple[str, ...]]]:
    """Return the ``for`` loops of a function's bytecode.

    Each is (offset at which it asks for its next item, start of its body, end, assigned names).
    Without the instructions ``FOR_ITER`` and ``STORE_*``: see ``check_bytecode``.
    """
    instructions = list(dis.get_instructions(code))
    loops = []
    for index, instruction in enumerate(instructions):
        if instruction.opname == "FOR_ITER":
            following = instructions[index + 1 :]
            body = following[0].offset if following else instruction.offset + 2
            loops.append((instruction.offset, body, instruction.argval, tuple(_targets(following))))
    return loops


def _targets(instructions: list[dis.Instruction]) -> list[str]:
    names: list[str] = []
    for instruction in instructions:
        if (
            instruction.opname.startswith("STORE_")
            and "ATTR" not in instruction.opname
            and "SUBSCR" not in instruction.opname
        ):
            stored = (
                instruction.argval
                if isinstance(instruction.argval, tuple)
                else (instruction.argval,)
            )
            names += [
                str(name) for name in (stored[:1] if "LOAD" in instruction.opname else stored)
            ]
            if "LOAD" in instruction.opname:
                break
        elif not instruction.opname.startswith(("UNPACK_", "CACHE", "EXTENDED_ARG", "NOP")):
            break
    return names


def _example(items: Any) -> int:
    total = 0
    for first, (_second, third) in items:
        total += first + third
    return total


@cache
def check_bytecode() -> None:
    """Raise UsageError if ``loops_in`` can't read the bytecode of this Python."""
    found = [names for *_, names in loops_in(_example.__code__)]
    if found != [("first", "_second", "third")]:
        raise UsageError(
            f"Python {sys.version.split()[0]} writes loops in a bytecode that torchbus-checkpoint"
            f" can't read (of an example it reads {found}): install Python 3.10 to 3.13, or a newer"
            " torchbus-checkpoint"
        )
