"""Batches on their way from a loader into a backward.

Knows tensors by weak references only, and knows nothing of ranks but this rank's share of a batch.
"""
