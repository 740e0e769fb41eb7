"""A folder of checkpoints: written atomically, and read as untrusted input.

The modules here know nothing of the loop.
"""
