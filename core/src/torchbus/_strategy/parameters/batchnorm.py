"""BatchNorm over all ranks, by torch's SyncBatchNorm."""

from __future__ import annotations

from torch.nn import Module, SyncBatchNorm

from torchbus._compat.gradients import BATCH_NORM
from torchbus._compat.modules import children


def convert(model: Module) -> None:
    """Replace the model's BatchNorm layers in place.

    Parameters, buffers and state_dict keys stay the same.
    """
    for module in list(model.modules()):
        for name, child in children(module).items():
            if isinstance(child, BATCH_NORM) and not isinstance(child, SyncBatchNorm):
                children(module)[name] = SyncBatchNorm.convert_sync_batchnorm(child)
