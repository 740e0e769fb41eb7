"""``torch.cuda.empty_cache()`` in the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from torchbus_gpu.lint.replacing import replaced
from torchbus_gpu.lint.sites import Sites
from torchbus_gpu.lint.steps import Steps

STEPS, PART = 5, 0.01


class EmptyCache:
    """Called on one line in five steps, and at least in every hundredth: more than once per epoch."""

    def __init__(self, steps: Steps) -> None:
        self._sites = Sites(steps, _words, STEPS, PART)

    @contextmanager
    def installed(self) -> Iterator[None]:
        def make(original: Callable[[], None]) -> Callable[[], None]:
            def empty_cache() -> None:
                self._sites.hit("torch.cuda.empty_cache()")
                original()

            return empty_cache

        with replaced(torch.cuda, "empty_cache", make):
            yield


def _words(what: str) -> str:
    return (
        f"{what} in the loop: it waits for the GPU, and every allocation afterwards asks the driver again. Leave it out: memory in the cache "
        "is free for your own tensors"
    )
