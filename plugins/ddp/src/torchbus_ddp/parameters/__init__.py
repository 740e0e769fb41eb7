"""The parameters and buffers that all ranks have in common, and those that belong to one rank.

Published: torchbus-sharded uses ``averaging`` and ``per_rank``, and declares torchbus-ddp for it.
"""
