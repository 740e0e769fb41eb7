"""BatchNorm over all ranks, by torch's SyncBatchNorm."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import Module, SyncBatchNorm, functional

from torchbus._compat.gradients import BATCH_NORM
from torchbus._compat.modules import children
from torchbus._session.context import Context


def convert(model: Module) -> None:
    """Replace the model's BatchNorm layers in place.

    Parameters, buffers and state_dict keys stay the same.
    """
    for module in list(model.modules()):
        for name, child in children(module).items():
            if isinstance(child, BATCH_NORM) and not isinstance(child, SyncBatchNorm):
                children(module)[name] = SyncBatchNorm.convert_sync_batchnorm(child)


def count_only_samples(session: Context) -> None:
    """Let a rank without samples, which repeats some, give the statistics none of them."""
    session.batches.follow()

    def make(forward: Callable[[SyncBatchNorm, Tensor], Tensor]) -> object:
        def synced(module: SyncBatchNorm, x: Tensor) -> Tensor:
            if not module.training or not _repeats(session):
                return forward(module, x)
            # its backward, too, meets the other ranks
            return _by_itself(module, x) + forward(module, x[:0]).sum()

        return synced

    session.replace(SyncBatchNorm, "forward", make)


def _repeats(session: Context) -> bool:
    shares = [one.share for one in session.batches.at_hand if one.share is not None]
    return bool(shares) and all(share.weight == 0.0 for share in shares)


def _by_itself(module: SyncBatchNorm, x: Tensor) -> Tensor:
    """Normalise by the running statistics, if there are any: nothing counts what comes out."""
    if module.running_mean is None or module.running_var is None:
        return x
    return functional.batch_norm(
        x, module.running_mean, module.running_var, module.weight, module.bias, eps=module.eps
    )
