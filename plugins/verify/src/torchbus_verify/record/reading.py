"""The record of a run, read back: its events in order, tensors when they are asked for."""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbus_verify.record.writing import EVENTS, TENSORS, WHOLE_UP_TO

Event = dict[str, Any]
"""What was written down at one place of the loop, by name, as JSON gives it back."""

INTEGERS = ("int", "uint", "bool")


@dataclass(frozen=True)
class Stored:
    """A tensor of a record: what it was, and where its numbers are."""

    dtype: str
    shape: tuple[int, ...]
    checksum: int
    offset: int | None
    file: bytes | mmap.mmap

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel() * (2 if "complex" in self.dtype else 1)

    @property
    def is_thinned(self) -> bool:
        return self.numel > WHOLE_UP_TO

    def values(self) -> Tensor:
        """Its numbers in one dimension, as float64 or int64."""
        every = -(-self.numel // WHOLE_UP_TO)
        count = self.numel if not self.is_thinned else -(-self.numel // every) + 1
        kind = torch.int64 if self.dtype.startswith(INTEGERS) else torch.float64
        if not count:
            return torch.empty(0, dtype=kind)
        assert self.offset is not None
        return torch.frombuffer(self.file, dtype=kind, count=count, offset=self.offset)


@dataclass(frozen=True)
class Record:
    """What one rank has left."""

    folder: Path

    @cached_property
    def events(self) -> list[Event]:
        path = self.folder / EVENTS
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def of(self, kind: str) -> list[Event]:
        """The events of one kind, in order."""
        return [event for event in self.events if event["kind"] == kind]

    @cached_property
    def _bytes(self) -> bytes | mmap.mmap:
        path = self.folder / TENSORS
        if not path.exists() or not path.stat().st_size:
            return b""
        with open(path, "r+b") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch wants it writable

    def tensors(self, described: Event) -> dict[str, Stored | None]:
        """The tensors of an event, by name."""
        return {name: None if one is None else self._stored(one) for name, one in described.items()}

    def _stored(self, one: list[Any]) -> Stored:
        dtype, shape, offset, checksum = one
        return Stored(dtype, tuple(shape), checksum, offset, self._bytes)
