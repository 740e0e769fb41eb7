"""Checks that an index means the same sample on all ranks.

The modules here ask data sets for a few items, and leave them as they were.
"""
