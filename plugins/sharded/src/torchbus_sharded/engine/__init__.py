"""Torch's ``fully_shard``: wrapping, prefetching, unsharding, models on the meta device.

The only room that touches private parts of FSDP2.
"""
