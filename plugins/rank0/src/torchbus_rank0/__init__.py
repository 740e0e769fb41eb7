"""Prints and writes files once, on rank 0."""
