"""Starts the other local ranks: by fork, by running the script again, or by spawn.

Runs before any rank knows the others. What comes after the start belongs to ``watch``.
"""
