"""Files that several ranks write, make or remove at once: rank 0's stay.

Replaces functions of ``os``, ``shutil`` and ``open`` for the length of a session.
"""
