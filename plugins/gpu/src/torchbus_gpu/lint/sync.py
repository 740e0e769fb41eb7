"""Find values that the loop reads from the device in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torchbus.runtime.steps import Steps

from torchbus_gpu.lint.replacing import replaced
from torchbus_gpu.lint.sites import Sites

WAITING = ("item", "cpu", "numpy", "tolist", "__float__", "__int__", "__bool__")
STEPS, PART = 20, 0.9
SPELLED = {"__float__": "float(...)", "__int__": "int(...)", "__bool__": "a condition"}


class Synchronisation:
    """Warns of a line that calls ``.item()`` or the like in 20 steps, and in nearly every one.

    Only tensors on the session's device count.
    """

    def __init__(self, steps: Steps, device: torch.device) -> None:
        self._sites = Sites(steps, self._message, STEPS, PART)
        self._device = device.type

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name in WAITING:
                stack.enter_context(replaced(torch.Tensor, name, self._noticing(name)))
            yield

    def _noticing(self, name: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
        hit, device, spelled = self._sites.hit, self._device, SPELLED.get(name, f".{name}()")

        def make(original: Callable[..., object]) -> Callable[..., object]:
            def method(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
                if tensor.device.type == device:
                    hit(spelled)
                return original(tensor, *args, **kwargs)

            return method

        return make

    def _message(self, what: str) -> str:
        costs = (
            "the host waits until the GPU has done all that is queued"
            if self._device != "cpu"
            else "on a GPU this waits for all that is queued"
        )
        return (
            f"{what} of a tensor in every step: {costs}. Keep the value on the device (detach() it,"
            " add it up) and read it every 50 steps or so, or give the tensor to s.log"
        )
