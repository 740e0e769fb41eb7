"""Reads the run folders of the local logger."""
