"""The engine, torch's ``fully_shard``: wrapping, prefetching, unsharding, meta device.

Only this folder touches private parts of FSDP2.
"""
