"""One synchronised backward: torch's reducer, driven without wrapping a module.

This folder changes gradients, and runs the reducer. ``torchbus_strategy.parameters`` finds the
parameters.
"""
