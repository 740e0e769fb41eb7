"""Starting torch's backward pass with the header beside the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchbus._compat.gradients import run_engine

TORCHS = vars(torch.autograd)


class Engine(Protocol):
    """``torch.autograd.backward``, or what the script has put in its place before the session."""

    def __call__(
        self,
        tensors: Sequence[Tensor],
        grad_tensors: Sequence[Tensor | None],
        retain_graph: bool | None = None,
        create_graph: bool = False,
        *,
        inputs: Sequence[Tensor] | None = None,
    ) -> None: ...


class Roots(NamedTuple):
    """Where a backward starts, with which gradients, and the inputs that it is for (None: all)."""

    tensors: Sequence[Tensor]
    gradients: Sequence[Tensor | None]
    retain_graph: bool | None
    inputs: Sequence[Tensor] | None


def run(engine: Engine, header: Tensor, seed: Tensor, roots: Roots) -> None:
    """Call ``engine``, or, for a single scalar, start torch's own engine directly.

    Torch's checks of shapes have nothing to find in a scalar, and take longer than a small model's
    graph.
    """
    tensors, gradients, retain_graph, inputs = roots
    lone = (
        inputs is None
        and len(tensors) == 1
        and _is_scalar(tensors[0])
        and (gradients[0] is None or _is_scalar(gradients[0]))
    )
    if lone and getattr(engine, "__globals__", None) is TORCHS:
        start = torch.ones_like(tensors[0]) if gradients[0] is None else gradients[0]
        run_engine(
            (tensors[0], header),
            (start, seed),
            bool(retain_graph),
            False,
            (),
            allow_unreachable=True,
            accumulate_grad=True,
        )
    else:
        engine([*tensors, header], [*gradients, seed], retain_graph, False, inputs=inputs)


def discard(engine: Engine, roots: Roots, parameters: Sequence[Tensor]) -> BaseException | None:
    """Run the backward of a rank that has no samples of its own, and drop its gradients.

    Returns the error that it has raised. The other ranks may have raised it too, and they wait for
    this one first.
    """
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        engine(roots.tensors, roots.gradients, roots.retain_graph, False, inputs=roots.inputs)
    except BaseException as error:
        return error
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient
    return None


def fail(error: BaseException | None) -> None:
    """Raise it, and let go of it: its traceback leads here, and to all that the backward holds."""
    try:
        if error is not None:
            raise error
    finally:
        del error


def _is_scalar(value: object) -> bool:
    return type(value) is Tensor and value.dim() == 0 and value.is_floating_point()
