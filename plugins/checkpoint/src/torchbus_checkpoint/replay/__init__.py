"""Lead the script back to where an interrupted run was: it runs from its start, without its past.

The modules here use what ``loop`` knows. They read no file.
"""
