"""Only one job at a time writes to a folder of checkpoints.

It holds a lock of the operating system, and leaves a note for people that says who it is.
"""
