"""The record of one rank on disk: one line per event, and a file with the tensors' bytes.

``events.jsonl`` has one JSON object per event. A tensor in it is ``[dtype, shape, offset,
checksum]``; its bytes begin at ``offset`` of ``tensors.bin``. Ranks after the first write checksums
only."""

from __future__ import annotations

import ctypes
import io
import json
import mmap
import os
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor
from torchbus.plugin import Unsupported


class Printed(io.TextIOBase):
    """Replaces ``sys.stdout``: forwards everything, and records whole lines."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer
        self._stream: TextIO = sys.stdout
        self._begun = ""

    def install(self) -> None:
        self._stream = sys.stdout
        sys.stdout = self

    def remove(self) -> None:
        """Record an unfinished line, and restore ``sys.stdout``."""
        if self._begun:
            self._writer.write("line", text=self._begun)
        if sys.stdout is self:
            sys.stdout = self._stream

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._writer.write("line", text=line.rsplit("\r", 1)[-1])
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return False


Event = dict[str, Any]
"""What was recorded at one place of the loop, by name, as read back from JSON."""
INTEGERS = ("int", "uint", "bool")


@dataclass(frozen=True)
class Stored:
    """A tensor of a record: dtype, shape, and the position of its values."""

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
        """Return the values, flat, as float64 or int64."""
        every = -(-self.numel // WHOLE_UP_TO)
        count = self.numel if not self.is_thinned else -(-self.numel // every) + 1
        kind = torch.int64 if self.dtype.startswith(INTEGERS) else torch.float64
        if not count:
            return torch.empty(0, dtype=kind)
        assert self.offset is not None
        return torch.frombuffer(self.file, dtype=kind, count=count, offset=self.offset)


@dataclass(frozen=True)
class RankRecord:
    """The record of one rank, for reading."""

    folder: Path

    @cached_property
    def events(self) -> list[Event]:
        path = self.folder / EVENTS
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def of(self, kind: str) -> list[Event]:
        """Return the events of one kind, in order."""
        return [event for event in self.events if event["kind"] == kind]

    @cached_property
    def _bytes(self) -> bytes | mmap.mmap:
        path = self.folder / TENSORS
        if not path.exists() or not path.stat().st_size:
            return b""
        with open(path, "r+b") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # writable for torch

    def tensors(self, described: Event) -> dict[str, Stored | None]:
        """Return the tensors of an event by name."""
        return {name: None if one is None else self._stored(one) for name, one in described.items()}

    def _stored(self, one: list[Any]) -> Stored:
        dtype, shape, offset, checksum = one
        return Stored(dtype, tuple(shape), checksum, offset, self._bytes)


EVENTS, TENSORS, PROGRESS = "events.jsonl", "tensors.bin", "steps"
WHOLE_UP_TO = 2**20
"""Of a tensor with more numbers, at most this number at equal distances is stored, and the norm."""


class RecordWriter:
    """Appends events. Each is on disk when ``write`` returns: a rank may end at any time."""

    def __init__(self, folder: Path, *, keep_tensors: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._events = open(folder / EVENTS, "a", encoding="utf-8", buffering=1)
        self._folder = folder
        self._tensors = open(folder / TENSORS, "ab", buffering=0) if keep_tensors else None
        self._progress = open(folder / PROGRESS, "ab", buffering=0)
        self._pid = os.getpid()

    def close(self) -> None:
        for file in (self._events, self._progress, self._tensors):
            if file is not None:
                file.close()

    def write(self, kind: str, **facts: object) -> None:
        """Append an event, except in a process that the script has forked."""
        if os.getpid() == self._pid:
            self.write_anywhere(kind, **facts)

    def write_anywhere(self, kind: str, **facts: object) -> None:
        """Append an event, also from a loader's worker. Lines of several processes do not mix."""
        self._events.write(json.dumps({"kind": kind, **facts}) + "\n")

    def count_step(self) -> None:
        """Count a step by the size of a file, which the progress display reads."""
        self._progress.write(b".")

    def with_tensors(self) -> RecordWriter:
        """Return itself, after enabling tensors on every rank."""
        if self._tensors is None:
            self._tensors = open(self._folder / TENSORS, "ab", buffering=0)
        return self

    def tensors(self, named: Mapping[str, Tensor | None]) -> dict[str, list[object] | None]:
        """Write tensors; return their descriptions by name."""
        return {name: None if one is None else self._tensor(one) for name, one in named.items()}

    def _tensor(self, tensor: Tensor) -> list[object] | None:
        try:
            retained = plain(tensor)
        except Unsupported:  # another rank has the values, in a pipeline
            return None
        content = ctypes.string_at(retained.data_ptr(), retained.numel() * retained.element_size())
        shape, dtype = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        offset = None
        if self._tensors is not None:
            offset = self._tensors.tell()
            self._tensors.write(content)
        return [dtype, shape, offset, zlib.crc32(content)]


def plain(tensor: Tensor) -> Tensor:
    """Return a whole, dense CPU tensor in float64 or int64; large ones are subsampled."""
    tensor = tensor.detach()
    if hasattr(tensor, "full_tensor"):  # a DTensor of a sharded strategy; all ranks get here
        tensor = tensor.full_tensor()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    kind = torch.float64 if tensor.is_floating_point() else torch.int64
    flat = tensor.reshape(-1)
    if flat.numel() <= WHOLE_UP_TO:
        return flat.cpu().to(kind).contiguous()
    every = -(-flat.numel() // WHOLE_UP_TO)
    norm = flat.double().square().sum().sqrt().reshape(1)
    return torch.cat([flat[::every].cpu().to(kind), norm.cpu().to(kind)]).contiguous()
