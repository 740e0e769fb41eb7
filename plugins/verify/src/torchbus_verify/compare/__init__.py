"""Compares two records: where they differ, from which step on, and by how much."""
