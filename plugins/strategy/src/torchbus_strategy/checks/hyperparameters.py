"""Hyperparameters: what optimizers and models were made with, to compare over ranks."""

from __future__ import annotations

import math
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus.plugin import RanksDiverged

Setting = float | str
Settings = dict[str, Setting]
# parts of a repr that depend on the process or the device
VOLATILE = re.compile(r" at 0x[0-9a-fA-F]+|0x[0-9a-fA-F]{6,}|cuda:\d+")
SEARCHES = {
    "optuna": (
        "optuna is imported, whose samplers draw for each rank: pip install torchbus-optuna, which"
        " lets rank 0 ask for all (import optuna before the session)"
    ),
    "ray.tune": (
        "ray.tune is imported: let rank 0 draw, and take s.all_gather_object(values)[0] on all"
        " ranks"
    ),
}
SHOWN_CHARACTERS = 80


def of_optimizer(optimizer: Optimizer) -> Settings:
    """Return an optimizer's class and hyperparameters, by names such as ``Adam, group 0: lr``."""
    kind = type(optimizer).__name__
    found: Settings = {"optimizer": kind, f"{kind}: groups": float(len(optimizer.param_groups))}
    for number, group in enumerate(optimizer.param_groups):
        held = {name: _plain(value) for name, value in group.items() if name != "params"}
        found |= {f"{kind}, group {number}: {name}": value for name, value in held.items()}
    return found


def of_numbered(optimizers: Iterable[tuple[int, Optimizer]]) -> Settings:
    """Return the hyperparameters of several optimizers, each with its optimizer's number."""
    return {
        f"optimizer {number}, {name}": value
        for number, optimizer in optimizers
        for name, value in of_optimizer(optimizer).items()
    }


def of_model(model: Module) -> Settings:
    """Return the model's repr, line by line."""
    try:
        lines = repr(model).splitlines()
    except Exception:  # a repr of the script, which without this check would not be called
        lines = [type(model).__name__]
    return {
        f"{type(model).__name__}, line {number}": VOLATILE.sub("", line.strip())
        for number, line in enumerate(lines)
    }


def digest(settings: Settings) -> int:
    """Return a checksum that ignores the last digits of numbers."""
    plain = [
        (name, f"{value:.5g}" if isinstance(value, float) else value)
        for name, value in settings.items()
    ]
    return zlib.crc32(repr(plain).encode(errors="replace"))


def refuse_unlike(settings: Settings, gather: Callable[[object], list[Any]]) -> None:
    """Raise RanksDiverged if the ranks' settings differ. All ranks call it.

    ``gather`` returns what each rank passes, by rank. The error names the first difference.
    """
    if len(set(gather(digest(settings)))) > 1:
        compare(gather(settings))


def compare(reported: Sequence[Settings]) -> None:
    """Raise RanksDiverged if the ranks' settings differ; the error names the first difference."""
    for name in dict.fromkeys(name for one in reported for name in one):
        values = [one.get(name, "nothing") for one in reported]
        if any(not _same(values[0], value) for value in values):
            shown = ", ".join(
                f"{_shown(value)} on rank {rank}" for rank, value in enumerate(values)
            )
            raise RanksDiverged(
                f"the ranks do not have the same hyperparameters: {name}: {shown}. Each rank"
                " would train a different model. Draw them from the same seeded generator on all"
                f" ranks, or only on rank 0: values = s.all_gather_object(values)[0].{searches()}"
            )


def searches() -> str:
    """Return a hint about imported libraries that search hyperparameters, or ""."""
    done = {"optuna"} if "torchbus_optuna" in sys.modules else set()
    seen = [text for name, text in SEARCHES.items() if name in sys.modules and name not in done]
    return "".join(f" {text[0].upper()}{text[1:]}" for text in seen)


def _same(one: Setting, other: Setting) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-30) or (
            math.isnan(one) and math.isnan(other)
        )
    return one == other


def _shown(value: Setting) -> str:
    return f"{value:.6g}" if isinstance(value, float) else value[:SHOWN_CHARACTERS]


def _plain(value: object) -> Setting:
    """Return a number, or a text that is the same in every process."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, Tensor) and value.numel() == 1 and value.device.type == "cpu":
        return float(value.detach())
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, Mapping):
        return str({str(key): _plain(item) for key, item in value.items()})
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return str([_plain(item) for item in value])
    return (
        type(value).__name__
        if isinstance(value, Tensor) or callable(value)
        else VOLATILE.sub("", repr(value))
    )
