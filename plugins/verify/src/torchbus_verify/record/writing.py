"""The record of one rank on disk: a line for each event, and the tensors' bytes beside them.

``events.jsonl`` has one JSON object per event. A tensor in it is ``[dtype, shape, offset,
checksum]``; its bytes begin at ``offset`` of ``tensors.bin``. Ranks after the first write checksums
only.
"""

from __future__ import annotations

import ctypes
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torchbus.plugin import Unsupported

EVENTS, TENSORS, PROGRESS = "events.jsonl", "tensors.bin", "steps"
WHOLE_UP_TO = 2**20
"""Of a tensor with more numbers, this many at equal distances are kept, and the norm of all."""


class Writer:
    """Appends events; each is on disk when ``write`` returns, for a rank may end at any time."""

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
        """In a process that the script forks nothing is written."""
        if os.getpid() == self._pid:
            self.write_anywhere(kind, **facts)

    def write_anywhere(self, kind: str, **facts: object) -> None:
        """In a loader's worker too: lines of several processes do not mix."""
        self._events.write(json.dumps({"kind": kind, **facts}) + "\n")

    def count_step(self) -> None:
        """The file's size is the number of steps, for whoever watches."""
        self._progress.write(b".")

    def with_tensors(self) -> Writer:
        """Itself, which from now on keeps tensors on every rank."""
        if self._tensors is None:
            self._tensors = open(self._folder / TENSORS, "ab", buffering=0)
        return self

    def tensors(self, named: Mapping[str, Tensor | None]) -> dict[str, list[object] | None]:
        """Their descriptions, by name; the bytes are written."""
        return {name: None if one is None else self._tensor(one) for name, one in named.items()}

    def _tensor(self, tensor: Tensor) -> list[object] | None:
        try:
            kept = plain(tensor)
        except Unsupported:  # another rank has the values, in a pipeline
            return None
        content = ctypes.string_at(kept.data_ptr(), kept.numel() * kept.element_size())
        shape, dtype = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        offset = None
        if self._tensors is not None:
            offset = self._tensors.tell()
            self._tensors.write(content)
        return [dtype, shape, offset, zlib.crc32(content)]


def plain(tensor: Tensor) -> Tensor:
    """A contiguous one on the CPU, unsharded, dense, in float64 or int64; large ones
    thinned out.
    """
    tensor = tensor.detach()
    if hasattr(tensor, "full_tensor"):  # of a sharded strategy; all ranks come here alike
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
