"""Folders of checkpoints, which are written atomically and read as untrusted input.

The modules here do not observe the loop.
"""
