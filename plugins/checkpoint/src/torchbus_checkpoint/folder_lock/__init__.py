"""One job at a time writes to a folder of checkpoints.

A lock of the operating system, and a note for people that says who holds it.
"""
