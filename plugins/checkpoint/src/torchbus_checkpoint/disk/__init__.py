"""A folder of checkpoints: written whole or not at all, read as if a stranger had written it.

Knows nothing of the loop.
"""
