"""How often the ranks of a large world may ask the store: one store serves them all."""

from __future__ import annotations

REQUESTS_PER_S = 5000
"""What the store can answer beside other work: about a tenth of what it can answer in all."""


def pause_s(shortest_s: float, world_size: int) -> float:
    """Return the seconds that each rank must pause between two requests."""
    return max(shortest_s, world_size / REQUESTS_PER_S)
