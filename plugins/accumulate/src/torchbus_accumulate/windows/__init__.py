"""Accumulation windows: what has been summed so far, what each batch weighs, and what a skipped step returns.

Touches gradients. Where the loop is in its data, ``place`` knows.
"""
