"""The process group: opened for the session, closed with it.

Also as a plugin by itself, for strategies with an engine of their own.
"""
