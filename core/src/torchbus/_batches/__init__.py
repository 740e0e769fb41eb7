"""Batches on their way from a loader into a backward.

This folder holds tensors by weak references only. It knows nothing of ranks but this rank's share
of a batch.
"""
