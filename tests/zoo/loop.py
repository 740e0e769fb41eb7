"""A loop of the zoo, and what must hold when it runs on several ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

LOOPS = Path(__file__).parent / "loops"
SHIPPED = Path(__file__).parents[2] / "plugins/testing/src/torchbus_testing/conformance/zoo"
"""Loops that the conformance kit brings."""


def scripts() -> list[Path]:
    """The files of all loops."""
    return [*LOOPS.glob("*.py"), *SHIPPED.glob("[!_]*.py")]


@dataclass(frozen=True)
class Loop:
    name: str
    batch_size: int | None = 4
    """Per rank; None for a script that has no batches."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the session is told besides strategy and devices."""
    exact: bool = True
    """(b) First gradients, parameters, rates and `values` are those of one process with the batches
    of all ranks.
    """
    divided: bool = True
    """(c) Each training sample is fetched once per pass by one rank, evaluation sees all samples on
    every rank. A loop that is not divided is compared with one process at its own batch size.
    """
    same_order: bool = True
    """Whether the order of the data, too, is that of the one process."""
    same_output: bool = True
    """Whether an exact loop prints the very lines of the one process, rather than as many lines."""
    values: tuple[str, ...] = ()
    """Names in the script whose final values belong to (a) and (b)."""
    distinct: tuple[str, ...] = ()
    """Names whose final values must differ between ranks: what each drew for itself."""
    own: str = ""
    """A regular expression for the optimizers' facts that belong to the samples of each rank, and
    are not compared.
    """
    whole: tuple[str, ...] = ()
    """Data sets that are evaluated with gradients enabled and so look like training to
    the ledger.
    """
    said: str = ""
    """A regular expression for what the session has to say."""
    refused: str = ""
    """A regular expression for the error that stops the loop."""
    setup_first: bool = False
    """Run the script's top level before the block, and only main() inside."""
    tolerance: float = 1e-9
    """Largest error, relative to the largest value of the tensor."""
    why: str = ""
    """The reason, where something does not hold."""

    @property
    def path(self) -> Path:
        own = LOOPS / f"{self.name}.py"
        return own if own.exists() else SHIPPED / own.name

    def under_command(self) -> Loop:
        """The row for `torchbus run`, where the script's top level, too, is inside the session."""
        return (
            replace(self, setup_first=False, divided=True, said="", why="")
            if self.setup_first
            else self
        )

    def of_one_process(self, ranks: int) -> int:
        """How many ranks' batches the one process takes that the loop is compared with."""
        return ranks if self.divided and self.options.get("batch") != "global" else 1

    def arguments(self, processes: int) -> list[str]:
        """The script's arguments when one process takes the batches of so many."""
        return [] if self.batch_size is None else ["--batch-size", str(self.batch_size * processes)]

    @property
    def relaxed(self) -> bool:
        strict = Loop(self.name)
        checks = ("exact", "divided", "same_order", "same_output", "tolerance", "refused", "said")
        return any(getattr(self, check) != getattr(strict, check) for check in checks)
