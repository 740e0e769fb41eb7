"""Loss scaling for float16, inside ``backward``: the loop sees true losses and true gradients.

Each optimizer has a GradScaler of torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchbus import objects
from torchbus.plugin import Answer, BackwardCall, Context, Unsupported, hookimpl
from torchbus.tree import as_list

from torchbus_amp._compat import (
    check,
    check_and_unscale_,
    factor_of,
    make_scale,
    note_step,
    scale_of,
    sparse_values,
)


class Scaler(GradScaler):
    """torch's GradScaler for one optimizer, fed with what ``LossScaling`` has found.

    ``found`` is 1 if the gradients that wait for a step have an overflow, 0 if not, and None if no
    gradients wait. ``skipped`` says whether the last step was skipped.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        super().__init__(device.type)
        self.optimizer = weakref.ref(optimizer)
        self.found: Tensor | None = None
        self.skipped = False
        self._scale_device = device

    def parameters(self) -> list[Tensor]:
        """The optimizer's parameters that require gradients."""
        groups = getattr(self.optimizer(), "param_groups", ())
        return [
            parameter
            for group in groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]

    def scale_tensor(self) -> Tensor:
        if self._scale is None:
            make_scale(self, self._scale_device)
        assert self._scale is not None
        return self._scale

    def note(self, found: Tensor) -> None:
        """Grow or shrink the scale after a step: ``found`` is 1 if it was skipped, 0 if not."""
        note_step(self, found)
        self.update()


def scaled_by_loop(loss: Tensor | None) -> bool:
    """Whether a loss comes out of a GradScaler: it is then a product with that scale."""
    factor = factor_of(loss)
    if factor is None:
        return False
    scales = [scale_of(scaler) for scaler in objects.alive(GradScaler)]
    return any(scale is not None and scale.data_ptr() == factor.data_ptr() for scale in scales)


def multiply(tensors: Iterable[Tensor], factor: Tensor) -> None:
    """Multiply the gradients of these tensors, if they have one, in place."""
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    if gradients:
        with torch.no_grad():
            for gradient in gradients:
                gradient.mul_(factor.to(gradient.device))


@torch.no_grad()
def check_and_scale(gradients: Iterable[Tensor], found: Tensor, factor: Tensor) -> None:
    """Multiply in place, and set ``found`` to 1 if anything is infinite or NaN."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for gradient in gradients:
        values = sparse_values(gradient) if gradient.is_sparse else gradient
        kinds.setdefault((values.dtype, values.device), []).append(values)
    for (dtype, device), group in kinds.items():
        if dtype == torch.float16:
            raise Unsupported(
                "precision='16-mixed' with float16 parameters: keep them in float32, or use"
                " precision='16-true'"
            )
        on_device = found.to(device)
        check_and_unscale_(group, on_device, factor.to(device))
        if on_device is not found:
            found.copy_(torch.maximum(found, on_device.to(found.device)))


State = dict[str, object]


class LossScaling:
    """Scales the gradient of the loss, and unscales all gradients after the synchronised backward.

    An overflow skips the step of the optimizer and of its schedulers, and halves its scale. A
    backward that reaches several optimizers is scaled by the smallest of their scales.

    Source: Micikevicius et al., Mixed Precision Training, ICLR 2018.
    """

    def __init__(self, session: Context) -> None:
        check()
        self._session = session
        self._scalers: dict[int, Scaler] = {}
        self._trained: list[tuple[Scaler, list[Tensor]]] = []
        self._others: list[Tensor] = []
        self._scale = torch.ones((), dtype=torch.float32)
        self._local = False
        self._loaded: list[State] = []
        self.foreign: bool | None = None

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if optimizer is not None:
            self._add(optimizer)
            self._refuse_lbfgs(optimizer)

    def _add(self, optimizer: Optimizer) -> None:
        if not self._session.captures(optimizer) or id(optimizer) in self._scalers:
            return
        self._scalers[id(optimizer)] = scaler = Scaler(optimizer, self._session.device)
        weakref.finalize(optimizer, self._scalers.pop, id(optimizer), None)
        if self._loaded:
            scaler.load_state_dict(self._loaded.pop(0))

    def _refuse_lbfgs(self, optimizer: Optimizer) -> None:
        if isinstance(optimizer, LBFGS) and id(optimizer) in self._scalers:
            raise Unsupported(
                "precision='16-mixed' with LBFGS: an overflow inside its step can't be skipped; use"
                " precision='bf16-mixed'"
            )

    # Backward ------------------------------------------------------------------------------------

    @hookimpl(trylast=True)
    def before_backward(self, call: BackwardCall) -> None:
        """Scale the loss, and the gradients that are there already.

        Scales are powers of two, so unscaling gives back every bit of these.
        """
        if self.foreign is None:
            self._begin(call)
        every = [(scaler, scaler.parameters()) for scaler in self._scalers.values()]
        self._trained = [] if self.foreign else [one for one in every if one[1]]
        if not self._trained:
            return
        scales = [scaler.scale_tensor() for scaler, _ in self._trained]
        # scales change only in steps
        self._scale = scales[0] if len(scales) == 1 else torch.stack(scales).min()
        call.factor = self._scale if call.factor == 1.0 else self._scale * call.factor
        self._local = not call.sync
        held = {
            id(parameter): parameter for _, parameters in self._trained for parameter in parameters
        }
        self._others = [leaf for leaf in reached(call) if id(leaf) not in held]
        multiply([*held.values(), *self._others], self._scale)

    def _begin(self, call: BackwardCall) -> None:
        self.foreign = scaled_by_loop(call.loss)
        # optimizers made before the block, which no variable named
        for optimizer in objects.optimizers():
            self._add(optimizer)

    @hookimpl(tryfirst=True)
    def backward_failed(self) -> None:
        """Unscale too: the loop may continue with the existing gradients."""
        self.after_backward()

    @hookimpl(tryfirst=True)
    def after_backward(self) -> None:
        if not self._trained:
            return
        inverse = self._scale.reciprocal()  # exact: scales are powers of two
        done: set[int] = set()
        for scaler, parameters in self._trained:
            _unscale(scaler, parameters, inverse, done)
        multiply(self._others, inverse)
        self._trained, self._others = [], []

    # Step ----------------------------------------------------------------------------------------

    @hookimpl(trylast=True)
    def step_called(
        self, optimizer: Optimizer, closure: Callable[[], object] | None, run: Callable[[], object]
    ) -> Answer | None:
        scaler = self._scalers.get(id(optimizer))
        if scaler is None or self.foreign:
            return None
        self._refuse_lbfgs(optimizer)
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        found, scaler.found = scaler.found, None
        scaler.skipped = found is not None and self._overflowed(scaler, found)
        if scaler.skipped:
            return Answer(result)
        if closure is None:
            return None
        run()
        return Answer(result)

    def _overflowed(self, scaler: Scaler, found: Tensor) -> bool:
        # the gradients are of only this rank, but all ranks must decide the same
        if self._local and self._session.world_size > 1:
            found = self._session.reduce(found, "max")
        scaler.note(found)
        return bool(found.item())

    @hookimpl
    def skip_scheduler(self, scheduler: LRScheduler) -> bool | None:
        scaler = self._scalers.get(id(getattr(scheduler, "optimizer", None)))
        return True if scaler is not None and scaler.skipped else None

    @hookimpl
    def loader_end(self) -> None:
        """Let a scheduler step that goes by epochs, after an overflow in the last batch."""
        for scaler in self._scalers.values():
            scaler.skipped = False

    # State ---------------------------------------------------------------------------------------

    def state_dict(self) -> list[State]:
        """The scale of each optimizer, in the order in which these were made."""
        return [scaler.state_dict() for scaler in self._scalers.values()]

    def load_state_dict(self, states: list[State]) -> None:
        """Load the scales of the optimizers that there are, in order, and keep the others'."""
        scalers = list(self._scalers.values())
        for scaler, state in zip(scalers, states, strict=False):
            scaler.load_state_dict(state)
        self._loaded = list(states[len(scalers) :])

    @hookimpl
    def describe(self, thing: object) -> str | None:
        if not isinstance(thing, Optimizer) or id(thing) not in self._scalers:
            return None
        if self.foreign:
            return "no loss scaling: the loop uses its own GradScaler"
        return f"loss scale {self._scalers[id(thing)].get_scale():g}"


def _unscale(scaler: Scaler, parameters: list[Tensor], inverse: Tensor, done: set[int]) -> None:
    """Unscale one optimizer's gradients, except those that are ``done``, and look for overflows."""
    found = torch.zeros((), dtype=torch.float32, device=inverse.device)
    gradients = {
        id(parameter): parameter.grad for parameter in parameters if parameter.grad is not None
    }
    again = [gradient for key, gradient in gradients.items() if key in done] if done else []
    check_and_scale(
        [gradient for key, gradient in gradients.items() if key not in done], found, inverse
    )
    if again:
        check_and_scale(again, found, torch.ones_like(inverse))
    done.update(gradients)
    if gradients:
        scaler.found = found


ACCUMULATES: Any = type(torch.ones((), requires_grad=True).expand(1).grad_fn.next_functions[0][0])  # type: ignore[union-attr]


def reached(call: BackwardCall) -> list[Tensor]:
    """The tensors whose ``grad`` this backward adds to: its ``inputs=``, or its graph's leaves."""
    if call.inputs is not None:
        return as_list(call.inputs)
    tensors = as_list(call.tensors)
    found = [tensor for tensor in tensors if isinstance(tensor, Tensor) and tensor.is_leaf]
    waiting: list[Any] = [
        tensor.grad_fn
        for tensor in tensors
        if isinstance(tensor, Tensor) and tensor.grad_fn is not None
    ]
    seen: set[Any] = {None, *waiting}
    for node in waiting:
        for child, _ in node.next_functions:
            if child in seen:
                continue
            seen.add(child)
            if type(child) is ACCUMULATES:
                found.append(child.variable)
            else:
                waiting.append(child)
    return found
