"""DTensors, for strategies that divide parameters over ranks.

Importing this module imports ``torch.distributed.tensor``, which takes two seconds. Nothing else in
the core does.
"""

from __future__ import annotations

from torchbus._compat.dtensors import is_sharded, own_part
from torchbus._dtensors.drawing import DRAWS
from torchbus._dtensors.errors import has_sign, line_of, no_entry, places_of
from torchbus._dtensors.install import as_whole, forget_other_meshes, torchs_own
from torchbus._dtensors.local_steps import LocalSteps
from torchbus._dtensors.reading import METHODS, READS
from torchbus._dtensors.states import (
    divided_optimizer,
    divided_states,
    swap,
    whole_optimizer,
    whole_states,
)
from torchbus._dtensors.values import like, whole

__all__ = [
    "DRAWS",
    "METHODS",
    "READS",
    "LocalSteps",
    "as_whole",
    "divided_optimizer",
    "divided_states",
    "forget_other_meshes",
    "has_sign",
    "is_sharded",
    "like",
    "line_of",
    "no_entry",
    "own_part",
    "places_of",
    "swap",
    "torchs_own",
    "whole",
    "whole_optimizer",
    "whole_states",
]
