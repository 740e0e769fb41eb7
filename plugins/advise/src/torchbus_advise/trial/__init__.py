"""Runs the first steps of a script in a process of its own."""
