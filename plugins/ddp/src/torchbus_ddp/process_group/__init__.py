"""The process group: opened for the session, closed with it.

It is also a separate plugin, for strategies with another engine.
"""
