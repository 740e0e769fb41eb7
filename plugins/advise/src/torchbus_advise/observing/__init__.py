"""Observes memory and operations in the first steps of a loop."""
