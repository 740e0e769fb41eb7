"""BatchNorm over all ranks, by torch's SyncBatchNorm."""

from __future__ import annotations

from torch.nn import Module, SyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm


def convert(model: Module) -> None:
    """Replace the model's BatchNorm layers in place; parameters, buffers and state_dict keys stay the same."""
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if isinstance(child, _BatchNorm) and not isinstance(child, SyncBatchNorm):
                module._modules[name] = SyncBatchNorm.convert_sync_batchnorm(child)  # type: ignore[no-untyped-call]
