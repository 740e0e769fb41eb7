"""``scaled_dot_product_attention`` of heads that are divided over ranks."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torchbus.plugin import Unsupported

Attention = Callable[..., Tensor]
HEADS = -3


def by_heads(original: Attention) -> Attention:
    """Each rank computes its heads. Shapes are (..., heads, length, features).

    With dropout, torch's own formula runs on the DTensors: it draws what one process draws.
    """

    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        *args: object,
        **kwargs: object,
    ) -> Tensor:
        if not isinstance(query, DTensor):
            return original(query, key, value, attn_mask, dropout_p, *args, **kwargs)
        if dropout_p:
            with sdpa_kernel(SDPBackend.MATH):
                return original(query, key, value, attn_mask, dropout_p, *args, **kwargs)
        own = [_own_heads(one, query) for one in (query, key, value)]
        mask = attn_mask if attn_mask is None else _own_mask(attn_mask, query)
        result = original(*own, mask, 0.0, *args, **kwargs)
        return DTensor.from_local(result, query.device_mesh, query.placements, run_check=False)

    return scaled_dot_product_attention


def _own_heads(tensor: Tensor, query: DTensor) -> Tensor:
    """This rank's heads of queries, keys or values."""
    heads = query.dim() + HEADS
    if heads < 0 or list(query.placements) != [Shard(heads)]:
        raise Unsupported(
            f"scaled_dot_product_attention under tensor parallel: queries of shape"
            f" {tuple(query.shape)} are divided as {list(query.placements)}, and not by heads"
            " (dim -3). Divide the layers of queries, keys and values by 'colwise', all three"
        )
    return _divided(tensor, query, heads)


def _own_mask(mask: Tensor, query: DTensor) -> Tensor:
    """The mask of this rank's heads: all of it if it is the same for every head."""
    if mask.dim() < -HEADS or mask.shape[HEADS] == 1:
        return mask.full_tensor() if isinstance(mask, DTensor) else mask
    return _divided(mask, query, mask.dim() + HEADS)


def _divided(tensor: Tensor, query: DTensor, dim: int) -> Tensor:
    mesh = query.device_mesh
    held = tensor if isinstance(tensor, DTensor) else DTensor.from_local(tensor, mesh)
    return held.redistribute(mesh, [Shard(dim)]).to_local()
