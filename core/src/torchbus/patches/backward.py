"""Patches ``torch.autograd.backward``: emits the events of the loop's backwards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch

from torchbus.compat.torch_names import current_graph_task_id, version
from torchbus.patches.patching import EventEmitter, emits, replace
from torchbus.tree import as_list

EVENTS = ("before_backward", "run_backward", "backward_failed", "after_backward")


@dataclass(slots=True, eq=False)
class BackwardCall:
    """One call of ``backward``, as the loop made it.

    ``weight`` is how much this rank's gradient counts in the mean over ranks, or None to use its
    share of the data. ``factor`` multiplies the gradient but not the loss. ``sync`` is whether to
    synchronise gradients. ``loss`` is the tensor if ``backward`` was called on a single one, or the
    sum if it was called on several losses that are single numbers. ``parts`` are other numbers of
    the loop that got their mean over ranks. ``count`` is what the loss counts (a ``Count`` of the
    strategies' package), if a plugin finds it out before the strategy.
    """

    tensors: Any
    grad_tensors: Any
    retain_graph: bool | None
    create_graph: bool
    inputs: Any
    weight: float | None = None
    count: Any = None
    factor: float | torch.Tensor = 1.0
    sync: bool = True
    parts: Sequence[torch.Tensor] = ()

    @property
    def loss(self) -> torch.Tensor | None:
        """The single tensor that ``backward`` was called on, of any shape, or None."""
        if isinstance(self.tensors, torch.Tensor):
            return self.tensors
        first = self.tensors[0] if len(self.tensors) == 1 else None
        return first if isinstance(first, torch.Tensor) else None

    def start(self, weight: float | torch.Tensor = 1.0) -> tuple[list[Any], list[Any]]:
        """Return the tensors to start at, and gradients of the same shapes times both factors."""
        factor = (
            self.factor if isinstance(weight, float) and weight == 1.0 else self.factor * weight
        )
        same = isinstance(factor, float) and factor == 1.0
        if self.grad_tensors is None and isinstance(self.tensors, torch.Tensor):
            return [self.tensors], [None if same else _times(self.tensors, None, factor)]
        tensors = as_list(self.tensors)
        given = as_list(self.grad_tensors) or [None] * len(tensors)
        return tensors, (
            given
            if same
            else [
                _times(tensor, gradient, factor)
                for tensor, gradient in zip(tensors, given, strict=True)
            ]
        )


def _added(tensors: Any, grad_tensors: Any) -> tuple[Any, Any]:
    """Return the sum of several losses, which has the same gradients, or other roots as lists."""
    losses, factors = as_list(tensors), as_list(grad_tensors)
    if (
        len(losses) < 2
        or len(factors) not in (0, len(losses))
        or any(
            type(one) is not torch.Tensor or one.dim() or not one.requires_grad for one in losses
        )
        or len({(one.dtype, one.device) for one in losses}) > 1
        or any(factor is not None and factor.requires_grad for factor in factors)
    ):
        return losses, factors or None
    with torch.enable_grad():
        parts = [
            loss if factor is None else loss * factor
            for loss, factor in zip(losses, factors or [None] * len(losses), strict=True)
        ]
        return sum(parts[1:], parts[0]), None


def _times(
    tensor: object, gradient: torch.Tensor | None, factor: float | torch.Tensor
) -> torch.Tensor | None:
    if gradient is not None:
        return gradient * factor
    if not isinstance(tensor, torch.Tensor) or tensor.numel() != 1:
        return None  # torch reports what is wrong
    if not isinstance(factor, float):
        same = tensor.dim() == 0 and factor.dtype == tensor.dtype and factor.device == tensor.device
        return factor.clone() if same else torch.ones_like(tensor) * factor
    if tensor.dim():
        return torch.full_like(tensor, factor)
    scalar = _scalar(factor, tensor.dtype, tensor.device)
    # a hook may have changed the cached tensor in place
    return scalar if version(scalar) == 0 else torch.full_like(tensor, factor)


@functools.lru_cache(maxsize=16)
def _scalar(factor: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a scalar tensor. Most loops need the same one in every step; making it costs 3 us."""
    with torch.inference_mode(False):
        return torch.full((), factor, dtype=dtype, device=device)


@emits("torch.autograd.backward", *EVENTS)
def backward_calls(emitter: EventEmitter) -> Callable[[], None]:
    return replace(torch.autograd, "backward", Outermost(emitter).wrap)


class Outermost:
    """Emits events only for the outermost backward, not for those inside of it.

    Nested calls, as of reentrant checkpointing or of an engine's ``backward``, are part of the call
    in which they run.
    """

    def __init__(self, emitter: EventEmitter) -> None:
        self._before, self._engines, self._failed, self._after = map(emitter.listeners, EVENTS)
        self._handed_over: set[int] = set()
        """Threads in which a plugin runs the backward."""

    def wrap(self, original: Callable[..., None]) -> Callable[..., None]:
        in_graph, handed_over = current_graph_task_id, self._handed_over

        def backward(
            tensors: object,
            grad_tensors: object = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            grad_variables: object = None,
            inputs: object = None,
        ) -> None:
            is_nested = in_graph() != -1 or (handed_over and get_ident() in handed_over)
            if is_nested or grad_variables is not None:
                return original(
                    tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs
                )
            if not isinstance(tensors, torch.Tensor):
                tensors, grad_tensors = _added(tensors, grad_tensors)
            call = BackwardCall(tensors, grad_tensors, retain_graph, create_graph, inputs)
            for listener in self._before.now:
                listener(call)
            self._run(call, original)
            for listener in self._after.now:
                listener(call)

        return backward

    def _run(self, call: BackwardCall, original: Callable[..., None]) -> None:
        engines, thread = self._engines.now, get_ident()
        try:
            if not engines:
                original(*call.start(), call.retain_graph, call.create_graph, inputs=call.inputs)
                return
            self._handed_over.add(thread)
            try:
                engines[0](call, original)
            finally:
                self._handed_over.discard(thread)
        except BaseException:
            for listener in self._failed.now:
                listener(call)
            raise
