"""Clips gradients before each real step. A small plugin, which can serve as an example."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer
from torchbus.plugin import Context, UsageError, expect, hookimpl, needs

from torchbus_clip._compat import sparse_values

ALGORITHMS = ("norm", "value")


@needs("gradient_clip_val", "gradient_clip_algorithm", verbs=("gradient_norm",))
class Clip:
    """Clips the gradients of each optimizer just before its real step.

    The gradients are already synchronised and unscaled.

    Args:
        gradient_clip_val: the largest norm over all parameters of the optimizer, or the largest
            absolute value. With 0 or None, nothing is clipped.
        gradient_clip_algorithm: "norm" (2-norm) or "value".

    ``s.gradient_norm`` is the norm at the last step before clipping.

    Source: Pascanu et al., On the difficulty of training recurrent neural networks, ICML 2013.

    Raises:
        UsageError: an option has another type or value.
    """

    verbs = ("gradient_norm",)
    tried_with = ({"gradient_clip_val": 0.1},)

    def __init__(
        self,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: Literal["norm", "value"] = "norm",
    ) -> None:
        expect("gradient_clip_val", gradient_clip_val, (int, float, type(None)), "a number")
        if gradient_clip_val is not None and not gradient_clip_val >= 0:
            raise UsageError(f"gradient_clip_val={gradient_clip_val}: it must be 0 or more")
        if gradient_clip_algorithm not in ALGORITHMS:
            raise UsageError(
                f"gradient_clip_algorithm={gradient_clip_algorithm!r} is unknown: use 'norm' or"
                " 'value'"
            )
        self._limit = gradient_clip_val
        self._algorithm = gradient_clip_algorithm
        self._session: Context | None = None
        self._norm: torch.Tensor | None = None

    @property
    def gradient_norm(self) -> torch.Tensor | None:
        """The norm of the gradients at the last step before clipping, a 0-dim tensor.

        It is None before the first step, and with "value". Any rank may read it.
        """
        return self._norm

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session

    @hookimpl
    def gradients_ready(self, optimizer: Optimizer) -> None:
        if not self._limit or self._session is None or not self._session.captures(optimizer):
            return
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        unusual = is_unusual(
            parameter.grad for parameter in parameters if parameter.grad is not None
        )
        if self._algorithm == "norm":
            self._norm = (clip_norm if unusual else clip_grad_norm_)(parameters, self._limit)
        else:
            (clip_value if unusual else clip_grad_value_)(parameters, self._limit)

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]] | None:
        if self._limit is None:
            return None
        if not self._limit:
            return {"clipping": ["gradient_clip_val=0: nothing is clipped"]}
        return {
            "clipping": [
                f"gradients of each optimizer by {self._algorithm}, to {self._limit:g}, once per"
                " real step"
            ]
        }


def is_unusual(gradients: Iterable[Tensor]) -> bool:
    """Whether any gradient is sparse, or has a graph, which an in-place operation would break.

    Gradients have a graph if the script differentiates through an optimizer with
    ``differentiable=True``.
    """
    return any(gradient.is_sparse or gradient.requires_grad for gradient in gradients)


def clip_norm(parameters: Sequence[Tensor], limit: float) -> Tensor:
    """Clip as ``clip_grad_norm_`` does, but make new gradients instead of changing them.

    Returns the norm before clipping, a 0-dim tensor.
    """
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [
        parameter.grad.coalesce() if parameter.grad.is_sparse else parameter.grad
        for parameter in trained
        if parameter.grad is not None
    ]
    norms = [
        torch.linalg.vector_norm(sparse_values(gradient) if gradient.is_sparse else gradient)
        for gradient in gradients
    ]
    norm: Tensor = torch.linalg.vector_norm(
        torch.stack([norm.to(norms[0].device) for norm in norms])
    )
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    for parameter, gradient in zip(trained, gradients, strict=True):
        parameter.grad = gradient * factor.to(gradient.device)
    return norm.detach()


def clip_value(parameters: Sequence[Tensor], limit: float) -> None:
    """Clip as ``clip_grad_value_`` does, but make new gradients instead of changing them."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            parameter.grad = gradient.detach().coalesce().clone()
            sparse_values(parameter.grad).clamp_(-limit, limit)
        elif gradient is not None:
            parameter.grad = gradient.clamp(-limit, limit)
