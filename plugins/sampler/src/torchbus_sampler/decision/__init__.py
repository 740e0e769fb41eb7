"""Whether a loader is divided, and why.

Listens to modes and backwards. The division itself is in ``order``.
"""
