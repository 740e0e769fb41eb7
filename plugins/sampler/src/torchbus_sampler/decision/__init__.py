"""Decide whether a loader is divided, and why.

The modules here look at models' modes and at backwards. ``order`` does the division itself.
"""
