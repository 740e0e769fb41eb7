"""``torch.save`` to a path."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from torchbus._seams.ears import Ears, emits


@emits("torch.save", "save_file")
def torch_save(ears: Ears) -> Callable[[], None]:
    """Hear saves to a path. Those into an open file or buffer are left alone."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def save(obj: object, f: object, *args: object, **kwargs: object) -> None:
            if not isinstance(f, str | os.PathLike):
                return original(obj, f, *args, **kwargs)

            def write(path: str) -> None:
                original(obj, path, *args, **kwargs)

            path = str(os.fspath(f))
            if ears.hook.save_file(path=path, write=write) is None:
                write(path)

        return save

    return ears.replace(torch, "save", make)
