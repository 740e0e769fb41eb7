"""Communication hooks for DistributedDataParallel.

torch compares the annotations of a hook with its own types, so they are not postponed in this
module.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from torchbus_compress import scatter
from torchbus_compress.codecs import Codec

Hook = Callable[[Any, dist.GradBucket], Future[Tensor]]


def done(result: Tensor) -> Future[Tensor]:
    """A future of what is there already."""
    future: Future[Tensor] = Future()
    future.set_result(result)
    return future


def encoded(codec: Codec) -> Hook:
    """A hook that sends gradients encoded, and averages them in full precision."""

    def hook(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        return done(scatter.mean(bucket.buffer(), codec))

    return hook


def local(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
    """Each rank keeps its own gradients: nothing is sent."""
    return done(bucket.buffer())


def with_exact(parameter: Tensor, inner: Hook) -> Hook:
    """``inner`` for all gradients, except that of this parameter, which is averaged exactly.

    It holds what ranks tell each other.
    """

    def hook(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        found = [
            gradient
            for one, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
            if one is parameter
        ]
        if not found:
            return inner(state, bucket)
        place = slice(
            at := found[0].storage_offset() - bucket.buffer().storage_offset(),
            at + found[0].numel(),
        )
        exact = found[0].reshape(-1) / dist.get_world_size()
        dist.all_reduce(exact)
        found[0].zero_()

        def put_back(future: Future[Tensor]) -> Tensor:
            averaged = future.value()
            result = averaged[0] if isinstance(averaged, list) else averaged
            result[place] = exact
            return result

        return inner(state, bucket).then(put_back)

    return hook
