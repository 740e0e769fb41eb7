"""Private names of torch that synchronising needs.

All were seen in torch 2.6 to 2.13, those of DTensors in 2.13. Functions such as ``target(node)``
read what the nodes of a graph have saved. Without one of their names, or if a kind of node has
another name, ``check`` raises UsageError when a strategy starts. The functions raise AttributeError
for a node that saves no such thing.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, _utils
from torch.autograd import graph
from torch.autograd.graph import Node
from torch.nn import Module
from torch.nn import functional as F
from torch.nn.modules import batchnorm
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import dataloader
from torchbus.compat.required import absent, private, require

run_engine: Callable[..., object] = private(
    graph, "_engine_run_backward", "runs a backward without checks that a scalar does not need"
)
"""Without it: UsageError at the first backward."""
sparse_values: Callable[[Tensor], Tensor] = Tensor._values
"""The values of a sparse tensor that may not be coalesced.

Without it: AttributeError when ddp is imported.
"""
is_view: Callable[[Tensor], bool] = Tensor._is_view
"""Without it: AttributeError when ddp is imported."""
flattened: Callable[[list[Tensor]], Tensor] = _utils._flatten_dense_tensors
unflattened: Callable[[Tensor, list[Tensor]], tuple[Tensor, ...]] = _utils._unflatten_dense_tensors
viewed: Callable[[Tensor], Tensor | None] = attrgetter("_base")
"""The tensor of which a tensor is a view. Without it: AttributeError at the first backward."""
use_count: Callable[[Tensor], int] = private(
    Tensor, "_use_count", "finds the batch that a graph has saved"
)
"""The number of references to a tensor: one by Python, and one by each graph or view.

Seen in 2.6 to 2.13. Without it: UsageError at the first backward after a batch.
"""
foreach_mul_: Callable[..., None] = private(
    torch, "_foreach_mul_", "multiplies all gradients at once"
)
"""Seen in 2.6 to 2.13. Without it: UsageError where gradients are weighted."""
foreach_copy_: Callable[[list[Tensor], list[Tensor]], None] = private(
    torch, "_foreach_copy_", "writes what rank 0 has sent"
)
"""Values that are being broadcast from rank 0.

Without one of the three: AttributeError when ddp is imported,
or UsageError at the first broadcast.
"""
DATA_ITERATOR: type[object] = dataloader._BaseDataLoaderIter
"""Without it: AttributeError when ddp is imported."""
BATCH_NORM: type[Module] = batchnorm._BatchNorm
"""Without it: AttributeError when ddp is imported."""
buffers: Callable[[Module], dict[str, Tensor | None]] = attrgetter("_buffers")
"""A module's buffers by name. Without it: AttributeError when a model is found."""
requires_grad: Callable[[Tensor], bool] = attrgetter("requires_grad")
gradient: Callable[[Tensor], Tensor | None] = attrgetter("grad")
"""Public names, read by ``map``, which is faster than a loop for many tensors."""
tensor_hooks: Callable[[Tensor], dict[int, Any] | None] = attrgetter("_backward_hooks")
"""The hooks of ``register_hook``. Without it: AttributeError at the first backward."""
post_accumulate_hooks: Callable[[Tensor], dict[int, object] | None] = attrgetter(
    "_post_accumulate_grad_hooks"
)
"""Without it: AttributeError at the first backward."""


def keep(thing: object) -> None:
    """Add a reference that not even the end of the interpreter removes."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def require_abort() -> None:
    """Raise UsageError where NCCL's collectives can't be ended.

    It is checked at the start, because the abort path ignores errors.
    """
    need = "ends NCCL's collectives when a rank fails"
    require(dist.distributed_c10d, "_abort_process_group", need)


def abort_all_groups() -> None:
    """End NCCL's collectives. Without ``_abort_process_group``: see ``require_abort``."""
    dist.distributed_c10d._abort_process_group()


def device_types(group: Any) -> list[str]:
    """Return the kinds of devices whose tensors a group accepts.

    Without ``_device_types``: AttributeError when ranks exchange objects.
    """
    return [torch.device(kind).type for kind in group._device_types]


def engines_of_groups() -> list[Any]:
    """Return the objects that run the collectives of each group.

    Without ``_world``, ``_get_backend`` or ``_device_types``: AttributeError at the end of the
    session.
    """
    return [
        group._get_backend(torch.device(kind))
        for group in dist.distributed_c10d._world.pg_map
        for kind in group._device_types
    ]


Get = Callable[[Node], Any]
PREFIX = "_saved_"
REDUCTION, SELF, OTHER, TARGET = "_saved_reduction", "_saved_self", "_saved_other", "_saved_target"
SIZES, RESULT = "_saved_self_sym_sizes", "_saved_result"
MAT1, MAT2, X1, X2 = "_saved_mat1", "_saved_mat2", "_saved_x1", "_saved_x2"
ORD = "_saved_ord"
DIM, KEEPDIM, TENSOR = "_saved_dim", "_saved_keepdim", "_saved_tensor"
NUMBERS = ("_saved_alpha", "_saved_exponent", "_saved_beta", "_saved_delta", "_saved_margin")
"""Plain numbers that a loss function was given."""
FACTORS = (OTHER, SELF)
"""The two sides of a product."""


def saved(node: Node, name: str) -> Any:
    """Return what a node has saved, or None if it has saved nothing, or hooks have packed it.

    Unpacking what activation checkpointing has packed would compute a part of the model again. Seen
    in 2.11 to 2.13. Without ``unpack_hook``, as in 2.6, it is unpacked.
    """
    return None if is_packed(node, name) else getattr(node, name, None)


def is_packed(node: Node, name: str) -> bool:
    """Whether hooks have packed what a node has saved."""
    packed = getattr(node, f"_raw{name}", None)
    each = packed if isinstance(packed, tuple) else (packed,)
    return any(getattr(one, "unpack_hook", None) is not None for one in each)


def sizes_given(node: Node) -> tuple[int, ...]:
    """Return the shape of a node's first argument, without unpacking the argument.

    The node that made the argument shows it. Seen in 2.11 to 2.13. The argument is unpacked if
    there is no ``_input_metadata``, or if it needs no gradient.
    """
    child, place = node.next_functions[0]
    made: Any = getattr(child, "_input_metadata", None)
    return tuple(made[place].shape if made else operand(node).shape)


def sizes_made(node: Node | None) -> list[tuple[int, ...]]:
    """Return the shapes of what a node has made. Without ``_input_metadata``: an empty list."""
    return [tuple(one.shape) for one in getattr(node, "_input_metadata", ())]


reduction: Get = attrgetter(REDUCTION)
operand: Get = attrgetter(SELF)
other: Get = attrgetter(OTHER)
target: Get = attrgetter(TARGET)
sizes: Get = attrgetter(SIZES)
WEIGHT, POS_WEIGHT = "_saved_weight", "_saved_pos_weight"
weight: Get = attrgetter(WEIGHT)
total_weight: Get = attrgetter("_saved_total_weight")
IGNORED = "_saved_ignore_index"
ignore_index: Get = attrgetter(IGNORED)
pos_weight: Get = attrgetter(POS_WEIGHT)
beta: Get = attrgetter("_saved_beta")
delta: Get = attrgetter("_saved_delta")
exponent: Get = attrgetter("_saved_exponent")
INDICES = "_saved_indices"
indices: Get = attrgetter(INDICES)
dim: Get = attrgetter(DIM)
keepdim: Get = attrgetter(KEEPDIM)
swapped: Get = attrgetter("_saved_dim0", "_saved_dim1")
diagonal: Get = attrgetter("_saved_dim1", "_saved_dim2")
slice_of: Get = attrgetter("_saved_dim", "_saved_start", "_saved_end")
order: Get = attrgetter("_saved_dims")
index: Get = attrgetter("_saved_index")
sides_of_dot: Get = attrgetter(SELF, TENSOR)
MATRICES = {
    "LinalgCholeskyExBackward0": "_saved_L",
    "LinalgEighBackward0": "_saved_eigenvectors",
    "LinalgInvExBackward0": "_saved_inverse",
    "LinalgSlogdetBackward0": "_saved_A",
    "LinalgSolveExBackward0": "_saved_A",
}
"""Where nodes that solve, invert or factorise a matrix have saved it. ``check`` does not try them,
because a torch may have no LAPACK. Without a name: no warning.
"""
TENSORS = (SELF, TARGET, REDUCTION)
CROSS_ENTROPY = (
    *TENSORS,
    "_saved_weight",
    "_saved_total_weight",
    IGNORED,
)
SAVED_NEED = "shows what a loss is a mean of"


def signed(number: int) -> int:
    """Restore the sign of a number: nodes show negative numbers as unsigned ones."""
    return number - 2**64 if number >= 2**63 else number


def number_in(tensor: Tensor) -> Any:
    """Return the number of a saved tensor of one element, in the host's memory.

    A dispatch mode of the loop, such as torch.utils.flop_counter.FlopCounterMode, gets a Python
    number instead of the tensor that stands for it, and can't read that number. Without
    ``_disable_current_modes``: RuntimeError from torch in such a mode.
    """
    try:
        return tensor.item()
    except RuntimeError:
        with _disable_current_modes():
            return tensor.item()


def is_python_number(saved: Tensor) -> bool:
    """Whether a saved tensor of one element stands for a number of Python.

    Such tensors do not decide the dtype of a result.
    """
    one = torch.ones((), dtype=torch.float16 if saved.is_floating_point() else torch.int8)
    return torch.result_type(saved, one) == one.dtype


def tensor_names(node: Node) -> list[str]:
    """Return the names under which a node may have saved tensors."""
    return [
        name
        for name in dir(node)
        if name.startswith(PREFIX) and not name.endswith(("_sizes", "_strides", "_size"))
    ]


@cache
def check() -> None:
    """Raise UsageError by name where this torch's nodes are not as they are read here."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        for kind, loss, names in _examples():
            node = loss.grad_fn
            if type(node).__name__ != kind:
                raise absent(torch.autograd, kind, f"{SAVED_NEED} (it has {type(node).__name__})")
            for name in names:
                if not hasattr(node, name):
                    raise absent(node, name, SAVED_NEED)


def _examples() -> Iterator[tuple[str, Tensor, tuple[str, ...]]]:
    """Yield an example of each kind of node, and the names of what it saves."""
    y = torch.ones(1, 2, dtype=torch.float32, device="cpu")
    labels = torch.zeros(1, dtype=torch.int64, device="cpu")
    x = y.clone().requires_grad_()
    yield "MseLossBackward0", F.mse_loss(x, y), TENSORS
    yield "SmoothL1LossBackward0", F.smooth_l1_loss(x, y), (*TENSORS, "_saved_beta")
    yield "HuberLossBackward0", F.huber_loss(x, y), (*TENSORS, "_saved_delta")
    yield "BinaryCrossEntropyBackward0", F.binary_cross_entropy(x, y), (*TENSORS, "_saved_weight")
    logits = F.binary_cross_entropy_with_logits(x, y)
    kind = "BinaryCrossEntropyWithLogitsBackward0"
    yield kind, logits, (*TENSORS, "_saved_weight", "_saved_pos_weight")
    yield "NllLossBackward0", F.nll_loss(x, labels), CROSS_ENTROPY
    image, pixels = x.view(1, 2, 1, 1), labels.view(1, 1, 1)
    yield "NllLoss2DBackward0", F.nll_loss(image, pixels), CROSS_ENTROPY
    yield "SoftMarginLossBackward0", F.soft_margin_loss(x, y), TENSORS
    yield "MultiMarginLossBackward0", F.multi_margin_loss(x, labels), ("_saved_margin",)
    yield "MeanBackward0", x.mean(), (SIZES,)
    yield "SumBackward0", x.sum(), (SIZES,)
    yield "SumBackward1", x.sum(1), (DIM, "_saved_keepdim")
    yield "NansumBackward0", x.nansum(), (SELF,)
    yield "MulBackward0", x * y[0, 0], FACTORS
    yield "MulBackward0", 2 * x, FACTORS
    yield "DivBackward0", x / 2, FACTORS
    yield "MmBackward0", x.t() @ x, (SELF, MAT2)
    yield "AddmmBackward0", torch.addmm(x, y.view(1, 2), x.t() @ y), (MAT1,)
    yield "BmmBackward0", torch.bmm(x.view(2, 1, 1), x.view(2, 1, 1)), (SELF, MAT2)
    yield "CdistBackward0", torch.cdist(x, x), (X1, X2)
    yield "DotBackward0", torch.dot(x[0], y[0]), (SELF, TENSOR)
    yield "SelectBackward0", x[0], ("_saved_index", SIZES)
    yield "PowBackward0", x**2, (SELF, "_saved_exponent")
    yield "AbsBackward0", x.abs(), (SELF,)
    yield "LogBackward0", x.log(), (SELF,)
    yield "Log1PBackward0", x.log1p(), (SELF,)
    yield "LogSigmoidBackward0", F.logsigmoid(x), (SELF,)
    yield "SoftplusBackward0", F.softplus(x), (SELF, "_saved_beta")
    yield "GatherBackward0", x.gather(1, labels[None]), (SELF, DIM, "_saved_index")
    yield "MeanBackward1", x.mean(1), (DIM, KEEPDIM)
    yield "LinalgVectorNormBackward0", x.norm(2), (ORD, SELF)
    yield "ExpBackward0", x.exp(), (RESULT,)
    yield "IndexBackward0", x[labels], ("_saved_indices",)
    yield "SubBackward0", x - y, ("_saved_alpha",)
    yield "RsubBackward1", 1 - x, ("_saved_alpha",)
    yield "NegBackward0", -x, ()
    yield "AddBackward0", x + y, ()
    yield "MaxBackward1", x.max(), (SELF,)
    yield "VarBackward0", x.var(0, correction=0), (SELF, DIM)
    yield "TopkBackward0", x.topk(1).values, (SIZES, DIM)
    yield "StackBackward0", torch.stack([x, x]), (DIM,)
    yield "TransposeBackward0", x.transpose(0, 1), ("_saved_dim0", "_saved_dim1")
    yield "PermuteBackward0", x.permute(1, 0), ("_saved_dims",)
    yield "DiagonalBackward0", x.diagonal(), ("_saved_dim1", "_saved_dim2")
    yield "SliceBackward0", x[:1], ("_saved_dim", "_saved_start", "_saved_end", SIZES)
    yield "ViewBackward0", x.view(2), ()
    yield "CloneBackward0", x.clone(), ()


READ = torch.ops.aten._local_scalar_dense.default
"""What ``tensor.item()`` runs. Without it: AttributeError at ``import torchbus``."""
SEEN_BY = "2.13"
DTENSORS_NEED = "forgets the ranks of an earlier session"


def is_divided(tensor: Tensor) -> bool:
    """Whether a tensor, of any shape, is a DTensor."""
    divided = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return divided is not None and isinstance(tensor, divided)


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, of that part's shape, or a plain tensor itself.

    The part shares the DTensor's memory.
    """
    divided: Any = tensor
    part: Tensor = divided.to_local() if is_divided(tensor) else tensor
    return part


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor, of any shape, is a DTensor of which ranks have different parts."""
    divided: Any = tensor
    return is_divided(tensor) and any(one.is_shard() for one in divided.placements)


def placed_as(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return the gradient, of the same shape, with its parameter's placements.

    If it is a sum that is still pending, it is summed. All ranks of its mesh call it.
    """
    made: Any = gradient
    held: Any = parameter
    if not is_divided(gradient):
        return gradient
    if not is_divided(parameter):
        made = made.full_tensor()
    elif made.placements != held.placements:
        made = made.redistribute(held.device_mesh, held.placements)
    result: Tensor = made
    return result


def handlers() -> dict[Any, Any]:
    """Return the operators that DTensor handles specially.

    Without ``_op_dispatcher`` or ``_custom_op_handlers``: AttributeError when a strategy starts.
    """
    from torch.distributed.tensor import DTensor

    found: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    return found


def forget_meshes() -> None:
    """Clear torch's caches of meshes.

    Torch caches the outcome of operations for the mesh, and so for the rank, of an earlier block in
    this process, or in the one that it was forked from. Other ranks would use parts that are rank
    0's. A cache also holds the mesh, and with it the process group, its threads and its port.

    Without ``_op_dispatcher`` or ``_collective_utils``: an error when a strategy starts. Without
    ``_clear_DTensor_sharding_propagator_cache``, ``_gen_transform_infos``,
    ``clear_redistribute_planner_cache`` or ``build_from_mesh`` in 2.13 or later: UsageError then.
    Older releases need not have them.
    """
    from torch.distributed.tensor import DTensor, _collective_utils, _redistribute

    dispatcher: Any = DTensor._op_dispatcher
    dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
    is_new = torch.__version__ >= SEEN_BY
    for holder, name in (
        (torch._C, "_clear_DTensor_sharding_propagator_cache"),
        (_redistribute, "_gen_transform_infos"),
        (_redistribute, "clear_redistribute_planner_cache"),
        (_collective_utils.MeshTopoInfo, "build_from_mesh"),
    ):
        found = getattr(holder, name, None)
        if found is not None:
            getattr(found, "cache_clear", found)()
        elif is_new:
            raise absent(holder, name, DTENSORS_NEED)
