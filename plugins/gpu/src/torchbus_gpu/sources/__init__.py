"""Sources of measurements: objects with a ``read() -> dict[str, float]``.

Names end with their units.
"""
