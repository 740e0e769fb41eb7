"""From the objects of a loop to plain values, and back.

Knows nothing of files and folders: that is ``disk``.
"""
