"""Diagnoses from the measurements: a GPU that waits for the loader, a slow rank."""
