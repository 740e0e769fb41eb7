"""Runs the script, each time in a new process and a new folder."""
