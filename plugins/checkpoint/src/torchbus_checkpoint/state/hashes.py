"""Digests of plain values and tensors, the same in the next run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor


def digest(value: object) -> str:
    return hashlib.sha256(b"".join(_bytes(value))).hexdigest()[:16]


def _bytes(value: object) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        yield value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, dict):
        for key in sorted(value):
            yield from (repr(key).encode(), *_bytes(value[key]))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _bytes(item)
    else:
        yield repr(value).encode()
