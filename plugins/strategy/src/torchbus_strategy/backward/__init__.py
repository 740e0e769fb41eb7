"""Synchronised backward passes, and the metadata that rides in the first gradient bucket."""
