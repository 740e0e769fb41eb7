"""Find ``empty_cache()`` of the device in the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from torchbus.runtime.steps import Steps

from torchbus_device import accelerators
from torchbus_gpu.lint.replacing import replaced
from torchbus_gpu.lint.sites import Sites

STEPS, PART = 5, 0.01


class EmptyCache:
    """Warns of a line that calls it in five steps, and in at least every hundredth one."""

    def __init__(self, steps: Steps) -> None:
        self._sites = Sites(steps, _message, STEPS, PART)

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, module in _modules().items():
                stack.enter_context(replaced(module, "empty_cache", self._noticing(name)))
            yield

    def _noticing(self, name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
        def make(original: Callable[[], None]) -> Callable[[], None]:
            def empty_cache() -> None:
                self._sites.hit(f"torch.{name}.empty_cache()")
                original()

            return empty_cache

        return make


def _modules() -> dict[str, object]:
    """The modules of devices with an ``empty_cache``, by name."""
    every = {name: accelerators.module(name) for name in (*accelerators.known(), "accelerator")}
    return {name: one for name, one in every.items() if hasattr(one, "empty_cache")}


def _message(what: str) -> str:
    return (
        f"{what} in the loop: it waits for the GPU, and every allocation afterwards asks the driver"
        " again. Leave it out: memory in the cache is free for your own tensors"
    )
