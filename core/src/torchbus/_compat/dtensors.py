"""DTensors: tensors that an engine has divided over ranks.

``torch.distributed.tensor`` is public since 2.5. It is not imported here: who has made a DTensor
has imported it.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor


def is_divided(tensor: Tensor) -> bool:
    """Whether it is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, which shares its memory, or a plain tensor itself."""
    divided: Any = tensor
    part: Tensor = divided.to_local() if is_divided(tensor) else tensor
    return part
