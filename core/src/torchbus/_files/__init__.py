"""Files that several ranks write, create or remove: rank 0's are kept.

It replaces functions of ``os`` and ``shutil``, and ``open``, during a session.
"""
