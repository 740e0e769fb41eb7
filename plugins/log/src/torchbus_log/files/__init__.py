"""The folder of a run: files that are complete up to their last line, on disks that may fail.

Of ranks and metrics, the modules here know only names and numbers.
"""
