"""Orders of torch's own samplers as arrays, from which a rank reads its slice in each step.

The modules here know samplers, and the memory that ranks share. ``decision`` decides which loader
is divided.
"""
