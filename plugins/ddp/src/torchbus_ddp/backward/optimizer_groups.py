"""Which parameters are synchronised together.

A backward leaves out a group of parameters that it reaches on no rank.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

WORTH_BYTES = 2**20
LEARNING_BACKWARDS = 2


class Groups:
    """Parameters, grouped by the optimizers that hold them.

    In a GAN, for example, the discriminator's backward does not reach the generator. ``agree``
    costs a small collective before the gradients, so it is ``useful`` only if some group is large.
    """

    def __init__(self, parameters: Sequence[Tensor], holders: Sequence[Hashable]) -> None:
        kinds = list(dict.fromkeys(holders))
        self._members = [
            [index for index, holder in enumerate(holders) if holder == kind] for kind in kinds
        ]
        bytes_of = [sum(parameters[index].nbytes for index in members) for members in self._members]
        self.useful = len(kinds) > 1 and max(bytes_of) >= WORTH_BYTES
        self._opaque = False
        self._device = parameters[0].device

    def hide(self) -> None:
        """Synchronise everything from now on.

        Gradients came unannounced: reentrant checkpointing makes them.
        """
        self._opaque = True

    def agree(self, present: Sequence[bool]) -> tuple[int, ...]:
        """The parameters of all groups that any rank's backward reaches. All ranks call it."""
        reached = [any(present[index] for index in members) for members in self._members]
        told = torch.tensor([*reached, self._opaque], dtype=torch.uint8, device=self._device)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        *union, opaque = told.tolist()
        return tuple(
            sorted(
                index
                for members, used in zip(self._members, union, strict=True)
                if used or opaque
                for index in members
            )
        )
