"""Starts the other local ranks: by fork, by running the script again, or by spawn.

It runs before the ranks know each other. ``watch`` does what comes after the start.
"""
