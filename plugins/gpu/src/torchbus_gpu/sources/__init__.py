"""Where measurements come from: objects with a ``read() -> dict[str, float]``, names with their units."""
