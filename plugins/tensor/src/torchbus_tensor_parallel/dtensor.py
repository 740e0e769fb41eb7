"""DTensors between divided layers in the script's code.

This folder replaces functions of tensors until the session ends. It knows no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.backends import mha
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import Module, functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torchbus.plugin import BackwardCall, Context, Unsupported, UsageError
from torchbus.tree import map_tensors

from torchbus_strategy import compat, sharding
from torchbus_strategy.user_code import muted
from torchbus_tensor_parallel._compat import CROSS_ENTROPY, functions_of_nn


def undivided(model: Module) -> Iterator[nn.Parameter]:
    """Yield the trained parameters that every rank has whole."""
    for one in model.parameters():
        if one.requires_grad and not isinstance(one, DTensor):
            yield one


def whole(gradient: Tensor) -> Tensor:
    """Make a gradient whole, as a hook of a parameter. All ranks of the mesh run it."""
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def gathered(one: Tensor) -> Tensor:
    """Return the whole of a DTensor, with a graph, or a plain tensor as it is.

    The result may be mixed with DTensors.
    """
    plain = one.full_tensor() if isinstance(one, DTensor) else one
    if plain.grad_fn is not None:
        plain.grad_fn.register_prehook(_all_whole)
    return plain


def make_whole_when_added(parameter: nn.Parameter) -> Node:
    """Make a parameter's gradients whole before they are added to earlier ones.

    Returns the graph's node that adds them. The caller must hold the node, because the hook lives
    as long as the node does. A hook of the parameter itself would run after the backward, as the
    loop's hooks do.
    """
    node = get_gradient_edge(parameter).node
    node.register_prehook(_all_whole)
    return node


def _all_whole(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if one is None else whole(one) for one in gradients)


class Mixing:
    """Treats plain tensors as replicated DTensors between ``begin`` and ``end``.

    Calls may be nested. Outside, torch continues to refuse such a mixture.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._open = ExitStack()

    def around(self, model: Module, undo: ExitStack) -> None:
        """Begin with each forward of the model, and end with it, even if it raises."""
        undo.callback(model.register_forward_pre_hook(self._before, prepend=True).remove)
        undo.callback(model.register_forward_hook(self._after, always_call=True).remove)

    def begin(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._open.enter_context(implicit_replication())

    def end(self) -> None:
        self._depth = max(self._depth - 1, 0)
        if not self._depth:
            self._open.close()

    def _before(self, model: Module, inputs: object) -> None:
        self.begin()

    def _after(self, model: Module, inputs: object, outputs: object) -> None:
        self.end()


DIM = 1


def divide_between(
    blocks: list[Module], mesh: DeviceMesh, gather: Callable[[Tensor], Tensor]
) -> list[Callable[[], None]]:
    """Divide the inputs of consecutive blocks, and gather the output of the last block.

    The first input has the shape (batch, sequence, ...). Returns functions that undo this.
    """

    def leave(block: Module, inputs: object, outputs: object) -> object:
        return map_tensors(outputs, gather)

    enter = partial(_enter, mesh)
    handles = [block.register_forward_pre_hook(enter) for block in blocks]
    return [*(one.remove for one in handles), blocks[-1].register_forward_hook(leave).remove]


def _enter(mesh: DeviceMesh, block: Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    first = inputs[0] if inputs else None
    if not isinstance(first, Tensor) or first.dim() <= DIM:
        raise UsageError(
            f"sequence_parallel=True: the first positional argument of {type(block).__name__} must"
            " be a tensor of shape (batch, sequence, ...). Leave sequence_parallel out"
        )
    if not isinstance(first, DTensor):
        first = DTensor.from_local(first, mesh, [Replicate()], run_check=False)
    return first.redistribute(placements=[Shard(DIM)]), *inputs[1:]


NAMES = ("sum", "mean", "norm", "prod", "std", "var", "max", "min", "amax", "amin", "dot")


def _plain(name: str) -> Callable[..., object]:
    original = getattr(Tensor, name)

    def reduce(tensor: DTensor, *args: Any, **kwargs: Any) -> object:
        found = original(tensor, *args, **kwargs)
        is_number = isinstance(found, DTensor) and found.dim() == 0
        return gathered(found).clone() if is_number else found  # not a view: the loop may write

    return reduce


REDUCTIONS: dict[str, object] = {name: _plain(name) for name in NAMES}
"""Replacements of methods that DTensor inherits. All ranks call them, as they call torch's."""


SCALAR_WARNING = "Found a non-scalar tensor with numel=1"
"""The beginning of torch's warning about an operation on a plain tensor and DTensors.

It is not needed here, because every rank has the whole plain tensor.
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
"""The functions that DTensor calls for these operators. All ranks call them."""


OPERATORS = sharding.READS | sharding.DRAWS | WRITES


def copied(tensor: DTensor, memo: dict[int, object]) -> object:
    """Deep-copy the whole tensor without its gradient, as torch copies a parameter."""
    if id(tensor) not in memo:
        if not tensor.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol"
            )
        mine: Tensor = sharding.whole(tensor).clone()
        made = nn.Parameter(mine) if isinstance(tensor, nn.Parameter) else mine
        memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


METHODS = sharding.METHODS | REDUCTIONS | {"__deepcopy__": copied}


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
    # the fast path is one kernel for a nn.TransformerEncoderLayer, and does not support DTensors
    session.on_close.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
    mha.set_fastpath_enabled(False)


Attention = Callable[..., Tensor]
HEADS = -3


def by_heads(original: Attention) -> Attention:
    """Return an attention of which each rank computes its heads.

    Shapes are (..., heads, length, features). With dropout, torch's formula runs on the DTensors,
    and draws the numbers that one process draws.
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
    """Return this rank's heads of queries, keys or values."""
    heads = query.dim() + HEADS
    if heads < 0 or list(query.placements) != [Shard(heads)]:
        raise Unsupported(
            f"scaled_dot_product_attention under tensor parallel: queries of shape"
            f" {tuple(query.shape)} are divided as {list(query.placements)}, and not by heads"
            " (dim -3). Divide the layers of queries, keys and values by 'colwise', all three"
        )
    return _divided(tensor, query, heads)


def _local_mask(mask: Tensor, query: DTensor) -> Tensor:
    """Return the mask of this rank's heads, or the whole mask if all heads share it."""
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
    """Concatenate without empty 1-D tensors, which torch ignores in a cat of whole tensors."""
    retained = [one for one in arguments[0] if one.dim() != 1 or one.numel()]
    with sharding.default_operator(operator):
        return operator(retained or arguments[0], *arguments[1:], **keywords)


JOINS: dict[object, Callable[..., object]] = {torch.ops.aten.cat.default: join}


def loss(
    operator: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Tensor:
    """Return the loss of the whole tensors, on every rank."""
    found: Tensor = operator(*map_tensors(arguments, sharding.whole), **keywords)
    return found


def gradient(
    operator: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Tensor:
    """Return the gradient of a loss, divided as the first input is.

    It is whole if that input is a plain tensor or a pending sum. If all inputs are plain tensors,
    torch's operator computes it.
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
"""The functions that DTensor calls for these operators. All ranks call them."""


def native_dropout(
    operator: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return the result, and a mask of the elements that were not dropped."""
    tensor: DTensor = arguments[0]
    ones = torch.ones(tensor.shape, dtype=tensor.dtype, device=tensor.to_local().device)
    scale, retained = operator(ones, *arguments[1:], **keywords)
    result: Tensor = tensor * sharding.like(scale, tensor)
    return result, sharding.like(retained, tensor)


DROPOUT: dict[object, Callable[..., object]] = {
    torch.ops.aten.native_dropout.default: native_dropout
}


CrossEntropy = Callable[..., Tensor]
NONE, MEAN, SUM = 0, 1, 2  # as torch numbers reductions


def divide_losses(session: Context) -> None:
    """Until the end of the block, let ranks share the classes of a cross entropy."""
    session.on_close.enter_context(loss_parallel())
    session.replace(functions_of_nn, CROSS_ENTROPY, by_classes)


def by_classes(original: CrossEntropy) -> CrossEntropy:
    """Return a cross entropy for which each rank reads only its classes of divided logits.

    Whole tensors get ``original``. The result is a plain tensor, whose graph says what it is a mean
    of. Logits are made whole for what torch's loss_parallel can't do (weights beside ignored
    targets, smoothing, probabilities).
    """

    def cross_entropy(
        logits: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        reduction: int = MEAN,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        remaining = (reduction, ignore_index, label_smoothing)
        if not isinstance(logits, DTensor):
            return original(logits, target, weight, *remaining)
        if weight is not None or label_smoothing or target.is_floating_point() or logits.dim() < 2:
            return original(logits.full_tensor(), target, weight, *remaining)
        each = original(logits, target, None, NONE, ignore_index, 0.0)
        losses = each.to_local() if isinstance(each, DTensor) else each
        if reduction == NONE:
            return losses
        total = losses.sum()
        retained = (target != ignore_index).sum().to(losses.dtype)
        return total if reduction == SUM else total / retained

    return cross_entropy


class PlainLoss:
    """Starts a backward from the whole value of a loss that the loop has made a DTensor.

    After the backward, that DTensor gets the value over all ranks, as other losses do.
    """

    def __init__(self) -> None:
        self._given: DTensor | None = None

    def begin(self, call: BackwardCall) -> None:
        self._given = call.loss if isinstance(call.loss, DTensor) else None
        if self._given is not None:
            call.tensors = gathered(self._given).clone()  # a view would not get the new value

    @torch.no_grad()
    def end(self, call: BackwardCall) -> None:
        given, self._given = self._given, None
        if given is not None and call.loss is not None:
            mine = compat.local_part(given.detach())
            mine.copy_(call.loss if _counts_here(given) else torch.zeros_like(mine))


def _counts_here(one: DTensor) -> bool:
    """Whether this rank's number is the whole value, or the first of several that are added up."""
    adds = any(getattr(each, "reduce_op", "") == "sum" for each in one.placements)
    return not adds or one.device_mesh.get_local_rank() == 0


def refuse_divided_loss(call: BackwardCall) -> None:
    """Raise Unsupported for a loss of divided logits that is not made by ``cross_entropy``."""
    if isinstance(call.loss, DTensor):
        raise Unsupported(
            "loss_parallel=True: this loss is a DTensor, which cross_entropy would not have"
            " returned. Use torch.nn.functional.cross_entropy, compute the loss of"
            " logits.full_tensor(), or leave loss_parallel out"
        )
