"""Converts the objects of a loop to plain values, and back.

The modules here do not deal with files and folders, except for ``snapshot``, which calls ``disk``.
"""
