"""A folder of checkpoints: written whole or not at all, and read as if a stranger had written it.

The modules here know nothing of the loop.
"""
