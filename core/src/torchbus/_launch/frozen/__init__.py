"""Ranks that show no sign of life: how the others find and end them.

It reads /proc. Elapsed time counts only while the process could run.
"""
