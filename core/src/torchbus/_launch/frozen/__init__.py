"""Ranks that show no sign of life: how they are found, and how the others end them.

Reads /proc. Elapsed time counts only while the process had its chance to run.
"""
