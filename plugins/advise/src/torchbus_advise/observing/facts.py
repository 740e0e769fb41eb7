"""What was observed, as plain numbers that travel between processes as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

NO_OPTIMIZER = -1
ROOT_UNIT = -1


@dataclass(frozen=True)
class ParameterFacts:
    """One parameter. ``optimizer``: the number of the one that holds it. ``managed``: an optimizer
    holds its model. ``unit``: the number of the repeated block that it is in.
    ``state_bytes``: optimizer state of its own shape; ``scalar_bytes``: the rest of it."""

    shape: tuple[int, ...]
    bytes: int
    gradient_bytes: int
    state_bytes: int
    scalar_bytes: int
    optimizer: int
    managed: bool
    unit: int


@dataclass(frozen=True)
class PassFacts:
    """One forward with its backward. ``checkpointed_bytes``: what ``activation_bytes`` would be if
    each repeated block were computed again in backward; ``block_flops``: the cost of that."""

    samples: int | None
    activation_bytes: int
    checkpointed_bytes: int
    flops: int
    block_flops: int


@dataclass(frozen=True)
class OptimizerFacts:
    name: str
    rates: tuple[float, ...]


@dataclass(frozen=True)
class LoaderFacts:
    """The training loader. ``load_s``: the seconds that one batch takes one process, None if
    unknown. ``samples``: those of the data set, None without a length."""

    batch_size: int | None
    workers: int
    load_s: float | None
    samples: int | None = None


@dataclass(frozen=True)
class Facts:
    """``hindrances``: what sharded strategies refuse, in words. ``notes``: what was answered or
    left out. ``warnings``: those of the run, each with its line."""

    parameters: list[ParameterFacts]
    passes: list[PassFacts]
    optimizers: list[OptimizerFacts]
    loader: LoaderFacts | None
    buffer_bytes: int
    blocks: int
    own_precision: bool
    steps: int
    step_s: float | None = None
    hindrances: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def from_json(told: dict[str, Any]) -> Facts:
    """The inverse of ``dataclasses.asdict``."""
    parts: dict[str, Any] = {
        "parameters": [
            ParameterFacts(**one | {"shape": tuple(one["shape"])}) for one in told["parameters"]
        ],
        "passes": [PassFacts(**one) for one in told["passes"]],
        "optimizers": [
            OptimizerFacts(one["name"], tuple(one["rates"])) for one in told["optimizers"]
        ],
        "loader": LoaderFacts(**told["loader"]) if told["loader"] else None,
    }
    return Facts(**told | parts)
