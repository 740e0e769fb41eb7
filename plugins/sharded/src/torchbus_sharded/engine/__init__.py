"""Torch's ``fully_shard``: wrapping, prefetching, unsharding, models on the meta device.

Only this folder touches private parts of FSDP2.
"""
