"""Communication hooks for DistributedDataParallel.

torch compares a hook's annotations with types, so this module does not postpone annotations.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

Hook = Callable[[Any, dist.GradBucket], Future[Tensor]]


def done(result: Tensor) -> Future[Tensor]:
    """Return a finished future."""
    future: Future[Tensor] = Future()
    future.set_result(result)
    return future


def encoded(codec: "Codec") -> Hook:
    """Return a hook that sends encoded gradients, and averages them in full precision."""

    def hook(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        return done(mean(bucket.buffer(), codec))

    return hook


def local(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
    """A hook that sends nothing: each rank steps with its local gradients."""
    return done(bucket.buffer())


def with_exact(parameter: Tensor, inner: Hook) -> Hook:
    """Return the hook ``inner``, except that this parameter's gradient is averaged exactly.

    That gradient holds the metadata that ranks exchange.
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


def mean(flat: Tensor, codec: "Codec") -> Tensor:
    """Return the mean of a vector over ranks, of the same shape (elements,) and dtype.

    All ranks call it, and get the same numbers. Each rank averages one part in full precision, and
    sends the encoded result to the others. The traffic is that of an all-reduce of encoded numbers.
    """
    ranks = dist.get_world_size()
    length = -(-flat.numel() // ranks)
    parts = torch.nn.functional.pad(flat, (0, ranks * length - flat.numel())).view(ranks, length)
    sent = codec.encode(parts)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    mine = codec.encode(codec.decode(received, flat.dtype).mean(0, keepdim=True))
    gathered = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(gathered, mine)
    return codec.decode(torch.cat(gathered), flat.dtype).reshape(-1)[: flat.numel()]


RANGE_BYTES = 16  # two float64: the smallest and the largest number of a row


class Codec(Protocol):
    """Encodes each row of numbers as a row of bytes, and decodes it."""

    def encode(self, rows: Tensor) -> Tensor:
        """Encode shape (rows, numbers), of a floating dtype, as (rows, bytes) of uint8."""

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Decode rows of ``encode`` to shape (rows, numbers), in this dtype."""


class Bfloat16:
    """Encodes each number in two bytes, with the range of float32."""

    def encode(self, rows: Tensor) -> Tensor:
        return rows.to(torch.bfloat16).contiguous().view(torch.uint8)

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        return rows.contiguous().view(torch.bfloat16).to(dtype)


class Bytes:
    """Encodes each number in one byte: 256 levels from the smallest to the largest of the row.

    Source: MinMaxUInt8 of Gan et al., BAGUA: Scaling up Distributed Learning with System
    Relaxations, VLDB 2022.
    """

    def encode(self, rows: Tensor) -> Tensor:
        low, high = (
            rows.min(1, keepdim=True).values.double(),
            rows.max(1, keepdim=True).values.double(),
        )
        step = ((high - low) / 255).clamp_min(torch.finfo(torch.float64).tiny)
        numbers = ((rows.double() - low) / step).round().clamp(0, 255).to(torch.uint8)
        return torch.cat([torch.cat([low, step], 1).contiguous().view(torch.uint8), numbers], 1)

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        low, step = rows[:, :RANGE_BYTES].flatten().view(torch.float64).view(-1, 2).split(1, 1)
        numbers: Tensor = rows[:, RANGE_BYTES:].double() * step + low
        return numbers.to(dtype)
