"""``fsdp``: the strategy, its models, its backward and its loss.

It decides when something happens. The folder ``engine`` knows how torch's ``fully_shard`` does it.
"""
