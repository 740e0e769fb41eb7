"""Accumulation windows: the gradients so far, the weight of each batch, and skipped steps.

The modules here change gradients. ``place`` knows where the loop is in its data.
"""
