"""The parameters and buffers that all ranks have in common, and those that belong to one rank.

Published: torchbus-sharded uses ``assigned``, ``averaging``, ``per_rank`` and ``rank0_values``, and declares torchbus-ddp.
"""
