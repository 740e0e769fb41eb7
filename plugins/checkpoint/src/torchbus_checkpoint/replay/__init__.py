"""Back to where an interrupted run was: the script runs from its start and its past is skipped.

Uses what ``loop`` knows. Reads no file itself.
"""
