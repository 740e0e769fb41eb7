"""``ddp_sharded``: ddp whose optimizer states are sharded over ranks (ZeRO stage 1).

The strategy ddp averages the gradients. Nothing here knows of ``fully_shard``, except the choice
between the stages.
"""
