"""Counts parameters, gradients and optimizer states, and what autograd saves for backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects

from torchbus_advise._compat import count_of_values, storage_key
from torchbus_advise.facts import NO_OPTIMIZER, ROOT_UNIT, OptimizerFacts, ParameterFacts


def models() -> list[Module]:
    """Return the outermost models that have parameters."""
    found = objects.outermost(objects.alive(Module))
    return [
        model
        for model in found
        if not objects.is_internal(model) and any(True for _ in model.parameters())
    ]


def parameters(optimizers: list[Optimizer], gradient_bytes: dict[int, int]) -> list[ParameterFacts]:
    """Return each parameter once, in the order of models and then of optimizers.

    ``gradient_bytes`` has the bytes of each parameter's largest gradient, by id.
    """
    holder = {id(one): number for number, held in enumerate(optimizers) for one in _of(held)}
    units, managed = _units(models(), holder)
    everything: dict[int, Tensor] = {
        id(one): one for model in models() for one in model.parameters()
    }
    everything |= {id(one): one for optimizer in optimizers for one in _of(optimizer)}
    facts = []
    for key, parameter in everything.items():
        number = holder.get(key, NO_OPTIMIZER)
        state = optimizers[number].state.get(parameter, {}) if number != NO_OPTIMIZER else {}
        alike, scalars = _state_bytes(parameter, state)
        facts.append(
            ParameterFacts(
                tuple(parameter.shape),
                parameter.nbytes,
                gradient_bytes.get(key, 0),
                alike,
                scalars,
                number,
                key in managed or key in holder,
                units.get(key, ROOT_UNIT),
            )
        )
    return facts


def described(optimizers: Iterable[Optimizer]) -> list[OptimizerFacts]:
    return [
        OptimizerFacts(type(one).__name__, tuple(map(_rate, one.param_groups)))
        for one in optimizers
    ]


def _rate(group: dict[str, Any]) -> float:
    """Return the script's rate, not the one that a scheduler sets in first steps, as in a warm-up.

    Cyclic schedules store it as ``max_lr``.
    """
    return float(group.get("max_lr", group.get("initial_lr", group.get("lr", 0.0))))


def buffer_bytes() -> int:
    return sum(buffer.nbytes for model in models() for buffer in model.buffers())


def has_low_precision(optimizers: Iterable[Optimizer]) -> bool:
    """Whether the script trains in another dtype than float32."""
    return any(parameter.dtype != torch.float32 for held in optimizers for parameter in _of(held))


def hindrances(optimizers: Iterable[Optimizer]) -> list[str]:
    """Return what the sharded strategies refuse, as text."""
    found = [name for name in map(_refused, optimizers) if name]
    sparse = any(
        isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse
        for model in models()
        for module in model.modules()
    )
    return sorted({*found, *(["sparse embeddings"] if sparse else [])})


def _refused(optimizer: Optimizer) -> str:
    name = type(optimizer).__name__
    return f"the optimizer {name}" if name in ("LBFGS", "Adafactor", "SparseAdam") else ""


def _of(optimizer: Optimizer) -> list[Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _units(found: list[Module], holder: dict[int, int]) -> tuple[dict[int, int], set[int]]:
    """Return the repeated block of each parameter, and the parameters of models of which an
    optimizer holds any."""
    units: dict[int, int] = {}
    managed: set[int] = set()
    blocks = 0
    for model in found:
        mine = {id(one) for one in model.parameters()}
        managed |= mine if mine & holder.keys() else set()
        for block in objects.repeated_blocks(model):
            for parameter in block.parameters():
                units.setdefault(id(parameter), blocks)
            blocks += 1
    return units, managed


def _state_bytes(parameter: Tensor, state: dict[str, object]) -> tuple[int, int]:
    alike = scalars = 0
    for value in state.values():
        if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim():
            alike += value.nbytes
        elif isinstance(value, Tensor):
            scalars += value.nbytes
    return alike, scalars


OUTSIDE = -1


class _Held:
    """Takes the place of a tensor in a graph, and is released when the graph is freed."""

    def __init__(self, tensor: Tensor, ledger: SavedTensors, key: int, block: int) -> None:
        self.tensor = tensor
        self._ledger, self._key, self._block = ledger, key, block

    def __del__(self) -> None:
        self._ledger.release(self._key, self._block)


class SavedTensors:
    """Counts the bytes that autograd saves for backward, each storage once."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        self._holders: dict[int, Counter[int]] = {}
        self._left_out: set[int] = set()
        self._block = OUTSIDE
        self._inputs: list[Tensor] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        with saved_tensors_hooks(self._pack, lambda held: held.tensor):
            yield

    def leave_out(self, tensors: Iterable[Tensor]) -> None:
        """Leave out only these tensors: parameters and buffers, which exist in any case."""
        self._left_out = {storage_of(tensor)[0] for tensor in tensors}

    @contextmanager
    def inside(self, block: int, inputs: Iterable[Tensor]) -> Iterator[None]:
        """Count inside a block's forward. If checkpointed, the block would save only its inputs."""
        self._inputs += inputs
        before, self._block = self._block, block
        try:
            yield
        finally:
            self._block = before

    def held(self) -> dict[int, tuple[int, frozenset[int]]]:
        """Return, by storage, its bytes and the blocks whose graphs hold it."""
        return {
            key: (self._bytes[key], frozenset(blocks))
            for key, blocks in self._holders.items()
            if key not in self._left_out
        }

    def total_bytes(self) -> int:
        return sum(count for count, _ in self.held().values())

    def checkpointed_bytes(self) -> int:
        """Return the peak if each block were computed again in backward: what is saved outside of
        blocks, the inputs of all blocks, and the inside of the largest block."""
        held = self.held()
        saved = {key: count for key, (count, blocks) in held.items() if OUTSIDE in blocks}
        saved |= {
            key: count for key, count in map(storage_of, self._inputs) if key not in self._left_out
        }
        inner: Counter[int] = Counter()
        for key, (count, blocks) in held.items():
            for block in blocks if key not in saved else ():
                inner[block] += count
        return sum(saved.values()) + max(inner.values(), default=0)

    def forget_inputs(self) -> None:
        self._inputs.clear()

    def release(self, key: int, block: int) -> None:
        holders = self._holders[key]
        holders[block] -= 1
        if not holders[block]:
            del holders[block]
        if not holders:
            del self._holders[key], self._bytes[key]

    def _pack(self, tensor: Tensor) -> _Held:
        key, count = storage_of(tensor)
        self._bytes[key] = count
        self._holders.setdefault(key, Counter())[self._block] += 1
        return _Held(tensor, self, key, self._block)


def storage_of(tensor: Tensor) -> tuple[int, int]:
    """Return a key that is unique while the tensor's storage lives, and the storage's bytes."""
    if tensor.layout != torch.strided:
        return id(tensor), count_of_values(
            tensor
        ) * tensor.element_size() if tensor.is_sparse else 0
    storage = tensor.untyped_storage()
    return storage_key(storage), storage.nbytes()
