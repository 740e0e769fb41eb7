"""``fsdp``: the strategy, its models, its backward and its loss.

Decides when something happens. How torch's ``fully_shard`` does it stands in ``engine``.
"""
