"""Whether one index means one sample on all ranks.

Asks data sets for a few items and leaves them as they were.
"""
