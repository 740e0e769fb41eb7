"""The mean over ranks of numbers that are sent encoded."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from torchbus_compress.codecs import Codec


def mean(flat: Tensor, codec: Codec) -> Tensor:
    """The mean of a vector over ranks. All ranks call it, and get the same numbers.

    Each rank averages one part, in full precision, and sends the result to the others. They send as
    many bytes as an all-reduce of the encoded vector.
    """
    ranks = dist.get_world_size()
    length = -(-flat.numel() // ranks)
    parts = torch.nn.functional.pad(flat, (0, ranks * length - flat.numel())).view(ranks, length)
    sent = codec.encode(parts)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    own = codec.encode(codec.decode(received, flat.dtype).mean(0, keepdim=True))
    gathered = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(gathered, own)
    return codec.decode(torch.cat(gathered), flat.dtype).reshape(-1)[: flat.numel()]
