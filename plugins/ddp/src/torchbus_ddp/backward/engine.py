"""Starting torch's backward pass with the header beside the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

Engine = Callable[..., None]
TORCHS = vars(torch.autograd)


def run(
    engine: Engine, header: Tensor, seed: Tensor, tensors: Sequence[Any], gradients: Sequence[Any], retain_graph: bool | None, inputs: Any
) -> None:
    """``engine`` is ``torch.autograd.backward``, or what somebody has put in its place before the session, which is called. For a lone
    scalar torch's checks of shapes, which take longer than a small model's graph, have nothing to find."""
    lone = inputs is None and len(tensors) == 1 and _is_scalar(tensors[0]) and (gradients[0] is None or _is_scalar(gradients[0]))
    if lone and getattr(engine, "__globals__", None) is TORCHS:
        start = torch.ones_like(tensors[0]) if gradients[0] is None else gradients[0]
        roots, seeds = (tensors[0], header), (start, seed)
        _engine_run_backward(roots, seeds, bool(retain_graph), False, (), allow_unreachable=True, accumulate_grad=True)
    else:
        engine([*tensors, header], [*gradients, seed], retain_graph, False, inputs=inputs)


def _is_scalar(value: Any) -> bool:
    return type(value) is Tensor and value.dim() == 0 and value.is_floating_point()
