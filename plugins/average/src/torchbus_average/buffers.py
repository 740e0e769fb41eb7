"""Buffers that a block may change, and that are put back after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.nn import Module


@contextmanager
def kept_buffers(models: Iterable[Module]) -> Iterator[None]:
    """Put the buffers of these models back at the end, bit for bit."""
    buffers = {id(one): one for model in models for one in model.buffers()}
    before = [(one, one.detach().clone()) for one in buffers.values()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
