"""What the nodes of a graph have saved for backward: ``saved.target(node)``.

Seen in 2.6 to 2.13. Without one of them, or if a kind of node has another name: UsageError when a
strategy starts, from ``check``. Nodes that have no such thing raise AttributeError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from torchbus._compat.required import absent, require

Get = Callable[[Node], Any]
PREFIX = "_saved_"
REDUCTION, SELF, OTHER, TARGET = "_saved_reduction", "_saved_self", "_saved_other", "_saved_target"
SIZES, RESULT = "_saved_self_sym_sizes", "_saved_result"
DIM, KEEPDIM, TENSOR = "_saved_dim", "_saved_keepdim", "_saved_tensor"
NUMBERS = ("_saved_alpha", "_saved_exponent", "_saved_beta", "_saved_delta", "_saved_margin")
"""Plain numbers that a loss function was given."""
FACTORS = (OTHER, SELF)
"""The two sides of a product."""

reduction: Get = attrgetter(REDUCTION)
own: Get = attrgetter(SELF)
other: Get = attrgetter(OTHER)
target: Get = attrgetter(TARGET)
sizes: Get = attrgetter(SIZES)
result: Get = attrgetter(RESULT)
weight: Get = attrgetter("_saved_weight")
total_weight: Get = attrgetter("_saved_total_weight")
ignore_index: Get = attrgetter("_saved_ignore_index")
pos_weight: Get = attrgetter("_saved_pos_weight")
beta: Get = attrgetter("_saved_beta")
delta: Get = attrgetter("_saved_delta")
exponent: Get = attrgetter("_saved_exponent")
indices: Get = attrgetter("_saved_indices")
dim: Get = attrgetter(DIM)
keepdim: Get = attrgetter(KEEPDIM)
swapped: Get = attrgetter("_saved_dim0", "_saved_dim1")
diagonal: Get = attrgetter("_saved_dim1", "_saved_dim2")
order: Get = attrgetter("_saved_dims")
index: Get = attrgetter("_saved_index")
sides_of_dot: Get = attrgetter(SELF, TENSOR)

TENSORS = (SELF, TARGET, REDUCTION)
CROSS_ENTROPY = (
    *TENSORS,
    "_saved_weight",
    "_saved_total_weight",
    "_saved_ignore_index",
)
NEED = "tells what a loss is a mean of"


def signed(number: int) -> int:
    """Restore the sign of a number: nodes show negative numbers as unsigned ones."""
    return number - 2**64 if number >= 2**63 else number


def number_in(tensor: Tensor) -> Any:
    """The number of a saved tensor of one element, in the host's memory.

    A dispatch mode of the loop, such as torch.utils.flop_counter.FlopCounterMode, gets a Python
    number instead of the tensor that stands for it, and can't read it. Without
    ``_disable_current_modes``: RuntimeError from torch in such a mode.
    """
    try:
        return tensor.item()
    except RuntimeError:
        with _disable_current_modes():
            return tensor.item()


def tensor_names(node: Node) -> list[str]:
    """The names under which a node may have saved tensors."""
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
                raise absent(torch.autograd, kind, f"{NEED} (it has {type(node).__name__})")
            for name in names:
                require(node, name, NEED)


def _examples() -> Iterator[tuple[str, Tensor, tuple[str, ...]]]:
    """Kinds of nodes, one of each, and what they save."""
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
    yield "DotBackward0", torch.dot(x[0], y[0]), (SELF, TENSOR)
    yield "SelectBackward0", x[0], ("_saved_index", SIZES)
    yield "PowBackward0", x**2, (SELF, "_saved_exponent")
    yield "AbsBackward0", x.abs(), (SELF,)
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
    yield "ViewBackward0", x.view(2), ()
    yield "CloneBackward0", x.clone(), ()
