"""Converts the objects of a loop to plain values, and back.

The modules here know nothing of files and folders: that is ``disk``.
"""
