"""The folder of a run: files that are complete up to their last line, on disks that may fail.

Knows nothing of ranks and metrics but names and numbers.
"""
