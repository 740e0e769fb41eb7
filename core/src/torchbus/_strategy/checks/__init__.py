"""Checks of what must be the same on all ranks, and would be silently wrong otherwise.

They compare and report. They change nothing.
"""
