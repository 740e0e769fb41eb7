"""The bytes that autograd's graphs hold: each storage once, without parameters and buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from torchbus_advise._compat import count_of_values, storage_key

OUTSIDE = -1


class _Held:
    """What a graph keeps in place of a tensor. It goes when the graph does."""

    def __init__(self, tensor: Tensor, ledger: SavedTensors, key: int, block: int) -> None:
        self.tensor = tensor
        self._ledger, self._key, self._block = ledger, key, block

    def __del__(self) -> None:
        self._ledger.release(self._key, self._block)


class SavedTensors:
    """A ledger of storages."""

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
        """These and no others: parameters and buffers, which are there anyway."""
        self._left_out = {storage_of(tensor)[0] for tensor in tensors}

    @contextmanager
    def inside(self, block: int, inputs: Iterable[Tensor]) -> Iterator[None]:
        """A block's forward. Checkpointed, it would keep only its inputs."""
        self._inputs += inputs
        before, self._block = self._block, block
        try:
            yield
        finally:
            self._block = before

    def held(self) -> dict[int, tuple[int, frozenset[int]]]:
        """By storage: its bytes, and the blocks whose graphs hold it."""
        return {
            key: (self._bytes[key], frozenset(blocks))
            for key, blocks in self._holders.items()
            if key not in self._left_out
        }

    def total_bytes(self) -> int:
        return sum(count for count, _ in self.held().values())

    def checkpointed_bytes(self) -> int:
        """What would be held at most if each block were computed again in backward: what is saved
        outside of blocks, the inputs of all, and the inside of the largest."""
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
    """A key that is unique while the storage lives, and its bytes."""
    if tensor.layout != torch.strided:
        return id(tensor), count_of_values(
            tensor
        ) * tensor.element_size() if tensor.is_sparse else 0
    storage = tensor.untyped_storage()
    return storage_key(storage), storage.nbytes()
