"""What a strategy asks of an order of data that is divided anew between two steps."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

Place = dict[str, Any]
"""Where a pass is, in plain values: the same on all ranks that have settled the same steps."""


@runtime_checkable
class DividedAnew(Protocol):
    """The order of a pass while ``world.divides_anew``.

    Each step is divided by what ``world.data`` says when the loop asks for it. What the loop has
    taken is used once it is settled, by ``commit`` or ``take_back``.
    """

    def begin(self) -> None:
        """Note the random numbers that the order is drawn from, before the first draw."""

    def has_more(self) -> bool:
        """Whether the loop gets another batch after what it has taken, as the order is divided."""

    def commit(self) -> None:
        """What the loop has taken since the last settlement is used."""

    def take_back(self) -> None:
        """Offer it again, and all that was drawn ahead."""

    def place(self) -> Place:
        """Where the pass is, as far as it is settled."""

    def go_to(self, place: Place | None) -> None:
        """Go to another rank's place, with its order; None: to the end."""
