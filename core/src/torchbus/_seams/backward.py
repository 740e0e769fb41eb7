"""``torch.autograd.backward``, which ``Tensor.backward`` calls."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import GradientEdge

from torchbus._seams.ears import Ears

if TYPE_CHECKING:
    from torchbus._loss.count import Count

PLACE = "torch.autograd.backward"
EVENTS = ("before_backward", "run_backward", "backward_failed", "after_backward")
ONE = (torch.Tensor, GradientEdge)  # in every step: a union, made anew each time, costs half a microsecond


class BackwardCall:
    """One call of ``backward``, as the loop made it.

    ``weight``: this rank's gradient counts so much in the mean over ranks, instead of what its share of the data
    says (None). ``factor``: multiplies the gradient and not the loss. ``sync``: whether gradients are to be
    synchronised. ``loss``: the tensor, where ``backward`` was called on a single one. ``count``: what it counts, where a plugin has found that
    out before the strategy does.
    """

    __slots__ = ("count", "create_graph", "factor", "grad_tensors", "inputs", "retain_graph", "sync", "tensors", "weight")

    def __init__(self, tensors: Any, grad_tensors: Any, retain_graph: bool | None, create_graph: bool, inputs: Any) -> None:
        self.tensors = tensors if isinstance(tensors, torch.Tensor) else as_list(tensors)
        self.grad_tensors = grad_tensors
        self.retain_graph = retain_graph
        self.create_graph = create_graph
        self.inputs = inputs
        self.weight: float | None = None
        self.count: Count | None = None
        self.factor: float | torch.Tensor = 1.0
        self.sync = True

    @property
    def loss(self) -> torch.Tensor | None:
        tensors = as_list(self.tensors)
        return tensors[0] if len(tensors) == 1 and isinstance(tensors[0], torch.Tensor) else None

    def start(self, weight: float | torch.Tensor = 1.0) -> tuple[list[Any], list[Any]]:
        """The tensors to start from, and their gradients times ``weight`` and the call's factor."""
        factor = self.factor if isinstance(weight, float) and weight == 1.0 else self.factor * weight
        same = isinstance(factor, float) and factor == 1.0
        if self.grad_tensors is None and isinstance(self.tensors, torch.Tensor):
            return [self.tensors], [None if same else _times(self.tensors, None, factor)]
        tensors = as_list(self.tensors)
        given = as_list(self.grad_tensors) or [None] * len(tensors)
        return tensors, given if same else [_times(tensor, gradient, factor) for tensor, gradient in zip(tensors, given, strict=True)]


def as_list(given: Any) -> list[Any]:
    """What torch takes as tensors, gradients or inputs: one, a sequence or a dict of them, or None."""
    if given is None:
        return []
    if isinstance(given, ONE):
        return [given]
    return list(given.values() if isinstance(given, dict) else given)


def _times(tensor: Any, gradient: torch.Tensor | None, factor: float | torch.Tensor) -> torch.Tensor | None:
    if gradient is not None:
        return gradient * factor
    if not isinstance(tensor, torch.Tensor) or tensor.numel() != 1:
        return None  # torch will say what is wrong
    if not isinstance(factor, float):
        same = tensor.dim() == 0 and factor.dtype == tensor.dtype and factor.device == tensor.device
        return factor.clone() if same else torch.ones_like(tensor) * factor
    if tensor.dim():
        return torch.full_like(tensor, factor)
    kept = _scalar(factor, tensor.dtype, tensor.device)
    return kept if kept._version == 0 else torch.full_like(tensor, factor)  # a hook may have changed it in place


@functools.lru_cache(maxsize=16)
def _scalar(factor: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The same in every step of most loops: making it anew costs 3 us."""
    with torch.inference_mode(False):
        return torch.full((), factor, dtype=dtype, device=device)


def install(ears: Ears) -> Callable[[], None]:
    """Nested calls (reentrant checkpointing, an engine with a ``backward`` of its own) belong to the call that they run in and are not heard."""
    before, run, failed, after = (ears.listeners(event) for event in EVENTS)
    in_graph = torch._C._current_graph_task_id
    thread, handed_over = threading.get_ident, set[int]()

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def engine(call: BackwardCall) -> None:
            original(*call.start(), call.retain_graph, call.create_graph, inputs=call.inputs)

        def backward(
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            grad_variables: Any = None,
            inputs: Any = None,
        ) -> None:
            if in_graph() != -1 or grad_variables is not None or (handed_over and thread() in handed_over):
                return original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            call = BackwardCall(tensors, grad_tensors, retain_graph, create_graph, inputs)
            for listener in before:
                listener(call)
            try:
                if run:
                    handed_over.add(thread())
                    run[0](call, original)
                else:
                    engine(call)
            except BaseException:
                for listener in failed:
                    listener(call)
                raise
            finally:
                if run:
                    handed_over.discard(thread())
            for listener in after:
                listener(call)

        return backward

    return ears.replace(torch.autograd, "backward", make)
