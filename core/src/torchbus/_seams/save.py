"""``torch.save`` to a path."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from torchbus._seams.ears import Ears

PLACE = "torch.save"
EVENTS = ("save_file",)


def install(ears: Ears) -> Callable[[], None]:
    """Saving into an open file or buffer is not heard."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            if not isinstance(f, str | os.PathLike):
                return original(obj, f, *args, **kwargs)

            def write(path: str) -> None:
                original(obj, path, *args, **kwargs)

            path = str(os.fspath(f))
            if ears.hook.save_file(path=path, write=write) is None:
                write(path)

        return save

    return ears.replace(torch, "save", make)
