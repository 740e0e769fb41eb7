"""The process group: opened for the session, closed with it.

It is also a plugin by itself, for strategies with an engine of their own.
"""
