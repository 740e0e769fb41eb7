"""Which rank this is, on which device, and what the ranks do together.

Collectives run on torch's own. Starting and watching processes belongs to ``_launch``.
"""
