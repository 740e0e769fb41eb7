"""What the run under the session is compared with.

As a rule that is the script by itself. Options that change the arithmetic on purpose are compared
with one rank under the same options. Accumulation is compared with a plain loop of larger batches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader

from torchbus_verify.runs.request import Change, Inside, Request

ARITHMETIC = (
    "precision",
    "amp_backend",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "warmup_steps",
)
WINDOW = "accumulate_grad_batches"


def of(request: Request) -> tuple[Request, tuple[Change, ...]]:
    """The request of the reference, and what is changed in it."""
    given = {name: value for name, value in request.options.items() if name in ARITHMETIC}
    changes: tuple[Change, ...] = (larger_batch(window(request)),) if window(request) > 1 else ()
    return replace(request, plugins=(), options={"strategy": None, "devices": 1, **given}), changes


def is_plain(request: Request) -> bool:
    """Whether it is the script by itself, with no session around it."""
    return not any(name in request.options for name in ARITHMETIC)


def window(request: Request) -> int:
    """How many batches the session accumulates."""
    given = request.options.get(WINDOW, 1)
    return given if isinstance(given, int) else 1


def same_backwards(request: Request) -> bool:
    """Whether both runs see the same batches in the same backwards."""
    return WINDOW not in request.options


def words(request: Request) -> str:
    """What it is called in a report."""
    plain = "the plain run" if is_plain(request) else "one rank under the same options"
    return (
        f"{plain} with a batch {window(request)} times as large" if window(request) > 1 else plain
    )


def larger_batch(factor: int) -> Change:
    """Each loader has so many times its batch size."""

    def change(run: Inside) -> None:
        loaders: Any = DataLoader
        original = loaders.__init__

        def __init__(
            loader: DataLoader[object],
            dataset: object,
            batch_size: int | None = 1,
            *args: object,
            **kwargs: object,
        ) -> None:
            whole = kwargs.get("batch_sampler") is None and isinstance(batch_size, int)
            original(
                loader,
                dataset,
                batch_size * factor if whole and batch_size else batch_size,
                *args,
                **kwargs,
            )

        loaders.__init__ = __init__

    return change
