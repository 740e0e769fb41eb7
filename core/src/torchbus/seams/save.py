"""``torch.save`` to a path."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from torchbus.bus import Bus
from torchbus.seams._patch import replace

PLACE = "torch.save"
EVENTS = ("save_file",)


def install(bus: Bus) -> Callable[[], None]:
    """Saving into an open file or buffer is not heard."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            if not isinstance(f, str | os.PathLike):
                return original(obj, f, *args, **kwargs)

            def write(path: str) -> None:
                original(obj, path, *args, **kwargs)

            path = str(os.fspath(f))
            if bus.hook.save_file(path=path, write=write) is None:
                write(path)

        return save

    return replace(torch, "save", make)
