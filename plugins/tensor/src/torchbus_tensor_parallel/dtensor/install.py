"""``scaled_dot_product_attention`` of heads that are divided over ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torchbus.plugin import Context, Unsupported, muted
from torchbus.tree import map_tensors

from torchbus_strategy import sharding
from torchbus_tensor_parallel.dtensor import reductions

SCALAR_WARNING = "Found a non-scalar tensor with numel=1"
"""Torch's error about an operation on a plain tensor and DTensors.

Here every rank has the whole of it.
"""


aten = torch.ops.aten
PACKETS = (
    aten.add_,
    aten.sub_,
    aten.mul_,
    aten.div_,
    aten.lerp_,
    aten.addcmul_,
    aten.addcdiv_,
    aten.copy_,
)


def write(
    operator: Callable[..., object], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> object:
    if isinstance(arguments[0], DTensor):
        with sharding.default_operator(operator):
            return operator(*arguments, **keywords)
    return operator(*map_tensors(arguments, sharding.whole), **keywords)


WRITES: dict[object, Callable[..., object]] = {
    getattr(packet, overload): write for packet in PACKETS for overload in packet.overloads()
}
"""What DTensor calls for these operators. All ranks call them."""


OPERATORS = sharding.READS | sharding.DRAWS | WRITES


def copied(tensor: DTensor, memo: dict[int, object]) -> object:
    """Without its gradient, as torch copies a parameter."""
    if id(tensor) not in memo:
        if not tensor.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol"
            )
        mine: Tensor = sharding.whole(tensor).clone()
        made = nn.Parameter(mine) if isinstance(tensor, nn.Parameter) else mine
        memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


METHODS = sharding.METHODS | reductions.METHODS | {"__deepcopy__": copied}


def as_whole(session: Context) -> None:
    """Until the end of the block, draw, attend, read, write and copy as if tensors were whole.

    A plain tensor beside a DTensor counts as one that all ranks have.
    """
    sharding.forget_other_meshes(session)
    session.on_close.enter_context(implicit_replication())
    session.on_close.enter_context(muted(SCALAR_WARNING, UserWarning))
    sharding.as_whole(session, OPERATORS, METHODS)
    compute_divided(session)


def compute_divided(session: Context) -> None:
    """Until the end of the block, attend, drop out and compare with features that are divided."""
    sharding.as_whole(session, DROPOUT | LOSSES | JOINS, {})
    session.replace(functional, "scaled_dot_product_attention", by_heads)
    # one kernel for a whole nn.TransformerEncoderLayer, which knows no DTensors
    session.on_close.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
    mha.set_fastpath_enabled(False)


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
        mine = [_local_heads(one, query) for one in (query, key, value)]
        mask = attn_mask if attn_mask is None else _local_mask(attn_mask, query)
        result = original(*mine, mask, 0.0, *args, **kwargs)
        return DTensor.from_local(result, query.device_mesh, query.placements, run_check=False)

    return scaled_dot_product_attention


def _local_heads(tensor: Tensor, query: DTensor) -> Tensor:
    """This rank's heads of queries, keys or values."""
    heads = query.dim() + HEADS
    if heads < 0 or list(query.placements) != [Shard(heads)]:
        raise Unsupported(
            f"scaled_dot_product_attention under tensor parallel: queries of shape"
            f" {tuple(query.shape)} are divided as {list(query.placements)}, and not by heads"
            " (dim -3). Divide the layers of queries, keys and values by 'colwise', all three"
        )
    return _divided(tensor, query, heads)


def _local_mask(mask: Tensor, query: DTensor) -> Tensor:
    """The mask of this rank's heads: all of it if it is the same for every head."""
    if mask.dim() < -HEADS or mask.shape[HEADS] == 1:
        return mask.full_tensor() if isinstance(mask, DTensor) else mask
    return _divided(mask, query, mask.dim() + HEADS)


def _divided(tensor: Tensor, query: DTensor, dim: int) -> Tensor:
    mesh = query.device_mesh
    held = tensor if isinstance(tensor, DTensor) else DTensor.from_local(tensor, mesh)
    return held.redistribute(mesh, [Shard(dim)]).to_local()


def join(
    operator: Callable[..., object], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> object:
    """Leave out what torch ignores in a cat of whole tensors, whatever its shape."""
    retained = [one for one in arguments[0] if one.dim() != 1 or one.numel()]
    with sharding.default_operator(operator):
        return operator(retained or arguments[0], *arguments[1:], **keywords)


JOINS: dict[object, Callable[..., object]] = {torch.ops.aten.cat.default: join}


def loss(
    operator: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Tensor:
    """That of the whole tensors, on every rank."""
    found: Tensor = operator(*map_tensors(arguments, sharding.whole), **keywords)
    return found


def gradient(
    operator: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Tensor:
    """The same, divided as the first input is, unless that is a sum still to be made.

    Of whole inputs it is torch's own, which is right.
    """
    if not any(isinstance(one, DTensor) for one in arguments[1:]):
        with sharding.default_operator(operator):
            mine: Tensor = operator(*arguments, **keywords)
            return mine
    found, of = loss(operator, arguments, keywords), arguments[1]
    is_divided = isinstance(of, DTensor) and not any(one.is_partial() for one in of.placements)
    divided: Tensor = sharding.like(found, of) if is_divided else found
    return divided


LOSSES: dict[object, Callable[..., object]] = {
    aten.mse_loss.default: loss,
    aten.mse_loss_backward.default: gradient,
    aten.smooth_l1_loss.default: loss,
    aten.smooth_l1_loss_backward.default: gradient,
    aten.huber_loss.default: loss,
    aten.huber_loss_backward.default: gradient,
    aten.soft_margin_loss.default: loss,
    aten.soft_margin_loss_backward.default: gradient,
    aten.binary_cross_entropy.default: loss,
    aten.binary_cross_entropy_backward.default: gradient,
}
"""What DTensor calls for these operators. All ranks call them."""


def native_dropout(
    operator: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """The result, and which elements were kept."""
    tensor: DTensor = arguments[0]
    ones = torch.ones(tensor.shape, dtype=tensor.dtype, device=tensor.to_local().device)
    scale, retained = operator(ones, *arguments[1:], **keywords)
    result: Tensor = tensor * sharding.like(scale, tensor)
    return result, sharding.like(retained, tensor)


DROPOUT: dict[object, Callable[..., object]] = {
    torch.ops.aten.native_dropout.default: native_dropout
}
