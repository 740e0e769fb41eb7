"""Errors of tp, with the offender and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle
from torch.nn import Module
from torch.optim import LBFGS, Adafactor, Optimizer
from torchbus.plugin import BackwardCall, Unsupported, UsageError

from torchbus_strategy.compat import post_accumulate_hooks, tensor_hooks

Grad = Callable[..., tuple[Tensor, ...]]
TOGETHER = {
    LBFGS: "all parameters together",
    Adafactor: "whole rows and columns of a parameter",
}


def refuse_optimizer(optimizer: Optimizer) -> None:
    """Raise UsageError for an optimizer whose step needs more than this rank's parts."""
    for cls, what in TOGETHER.items():
        if isinstance(optimizer, cls):
            raise UsageError(
                f"strategy='tp' with {cls.__name__}: its step looks at {what}, of which a rank has"
                " only a part; use Adam, or strategy='ddp'"
            )


def refuse_shared(model: Module, styles: Mapping[str, ParallelStyle]) -> None:
    """Raise UsageError if a parameter of a divided module also belongs to another module."""
    owners: dict[int, list[str]] = {}
    for path, one in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(one), []).append(path)
    for name in styles:
        for path, one in model.get_submodule(name).named_parameters(name):
            others = [other for other in owners[id(one)] if other != path]
            if others:
                raise UsageError(
                    f"plan: {path} is the same tensor as {others[0]}, and dividing it would make"
                    f" two of it. Leave {name!r} out of the plan"
                )


def refuse_divided(model: Module, styles: Mapping[str, ParallelStyle]) -> None:
    """Raise Unsupported if a layer has been divided already, for another model that has it."""
    for name in styles:
        for path, one in model.get_submodule(name).named_parameters(name):
            if isinstance(one, DTensor):
                raise Unsupported(
                    f"{path} of {type(model).__name__} is divided already, for another model that"
                    " has it too. Make the optimizer of the model that contains everything first,"
                    f" leave {name!r} out of the plan, or use strategy='ddp'"
                )


def refuse_hooks(model: Module, styles: Mapping[str, ParallelStyle]) -> None:
    """Raise Unsupported for hooks on parameters that are to be divided: they would be lost."""
    for name in styles:
        for path, one in model.get_submodule(name).named_parameters(name):
            if tensor_hooks(one) or post_accumulate_hooks(one):
                raise Unsupported(
                    f"tensor parallel with parameter hooks on {type(model).__name__}.{path}, which"
                    " the plan divides: register them after the optimizer is made, on the divided"
                    " parameter, or leave the module out of the plan"
                )


def refuse_local_dropout(model: Module, styles: Mapping[str, ParallelStyle]) -> None:
    """Raise Unsupported for dropout on shards that torch's style returns as plain tensors.

    All ranks would drop the same positions of their shards.
    """
    for name, style in styles.items():
        parent = model.get_submodule(name.rpartition(".")[0])
        drops = [p for p, one in parent.named_modules() if isinstance(one, nn.Dropout) and one.p]
        if isinstance(style, ColwiseParallel) and style.use_local_output and drops:
            raise Unsupported(
                f"plan: {name!r} hands its shards on as plain tensors (ColwiseParallel with"
                f" use_local_output=True), and beside it is dropout ({drops[0]}), which would drop"
                " the same places on all ranks. Use 'colwise', or use_local_output=False"
            )


def refuse_derivatives(original: Grad) -> Grad:
    """Wrap ``torch.autograd.grad`` to refuse divided parameters."""

    def grad(
        outputs: Tensor | Sequence[Tensor],
        inputs: Tensor | Sequence[Tensor],
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, ...]:
        asked = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        if any(isinstance(one, DTensor) for one in asked):
            raise Unsupported(
                "torch.autograd.grad for divided parameters under strategy='tp': the ranks would"
                " not know of it. Use backward(), or strategy='ddp'"
            )
        return original(outputs, asked, *args, **kwargs)

    return grad


def refuse_graphs(original: Grad) -> Grad:
    """Wrap ``torch.autograd.grad`` to refuse second derivatives.

    Second derivatives of DTensors that are made from plain tensors are not exact.
    """

    def grad(
        outputs: Tensor | Sequence[Tensor],
        inputs: Tensor | Sequence[Tensor],
        grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, ...]:
        if create_graph:
            raise Unsupported(
                "torch.autograd.grad(create_graph=True) with divided layers: second derivatives are"
                " not exact there; use strategy='ddp' without tp="
            )
        return original(outputs, inputs, grad_outputs, retain_graph, False, *args, **kwargs)

    return grad


def refuse_second_derivatives(call: BackwardCall) -> None:
    """Raise Unsupported for ``backward(create_graph=True)``."""
    if call.create_graph:
        raise Unsupported(
            "backward(create_graph=True) under strategy='tp': gradients of shards are averaged"
            " without a graph; use strategy='ddp'"
        )
