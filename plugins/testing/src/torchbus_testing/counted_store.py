"""Counts the requests that a rank makes to the shared store."""

from __future__ import annotations

import torch.distributed as dist

from torchbus_launch.store import SealedStore


class CountedStore(SealedStore):
    """A store of a job that counts its requests.

    ``requests``: how many it has made so far.
    """

    requests = 0

    @property
    def raw(self) -> dist.Store:
        """torch's own store; each use counts as a request."""
        self.requests += 1
        return super().raw
