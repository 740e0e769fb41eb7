"""Accumulation windows: the gradients so far, the weight of each batch, and skipped steps.

The modules here change gradients. ``position`` knows where the loop is in its data.
"""
