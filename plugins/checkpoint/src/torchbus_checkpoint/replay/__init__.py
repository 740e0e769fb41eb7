"""Replay: runs the script from its start to the position of an interrupted run, without effects.

The modules here use what ``loop`` knows. They read no file.
"""
