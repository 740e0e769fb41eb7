"""Orders of torch's own samplers as arrays, of which a rank reads its slice of each step.

Knows samplers and the memory that ranks share. Which loader is divided is decided in ``decision``.
"""
