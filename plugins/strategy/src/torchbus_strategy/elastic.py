"""Orders of data that are divided again between two steps, as replicas come and go."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torchbus.plugin import LoaderPass

Place = dict[str, Any]
"""Where a pass is, in plain values: the same on all ranks that have settled the same steps."""


@runtime_checkable
class ElasticOrder(Protocol):
    """The order of a pass while ``world.divides_anew``.

    Each step is divided by what ``world.data`` says when the loop asks for it. Batches that the
    loop has consumed are settled by ``commit`` or ``take_back``.
    """

    def begin(self) -> None:
        """Note the random numbers that the order is drawn from, before the first draw."""

    def has_more(self) -> bool:
        """Whether the order has another batch for the loop after the consumed ones."""

    def commit(self) -> None:
        """Count the batches consumed since the last settlement as used."""

    def take_back(self) -> None:
        """Offer the batches consumed since the last settlement, and those drawn ahead, again."""

    def place(self) -> Place:
        """Return where the pass is, as far as it is settled."""

    def go_to(self, place: Place | None) -> None:
        """Go to another rank's place, and use its order. None is the end of the pass."""


def elastic_order(order: LoaderPass | None) -> ElasticOrder | None:
    """Return the order that a pass draws from, if it is divided again between two steps."""
    attributes = {} if order is None else order.replacements
    found = attributes.get("batch_sampler", attributes.get("sampler"))
    return found if isinstance(found, ElasticOrder) else None
