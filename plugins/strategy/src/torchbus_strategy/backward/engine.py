"""Calls torch's autograd engine for a session's backwards, and the user's hooks afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus.runtime.user_code import INSIDE

from torchbus_strategy.compat import post_accumulate_hooks as hooks_of
from torchbus_strategy.compat import run_engine, tensor_hooks
from torchbus_strategy.loss.terms import Count

TORCHS = vars(torch.autograd)


class BackwardFunction(Protocol):
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


def engine_run(engine: BackwardFunction, header: Tensor, seed: Tensor, roots: Roots) -> None:
    """Call ``engine``, or, for a single scalar, start torch's own engine directly.

    Torch's checks of shapes find nothing in a scalar, and need longer than a small model's graph.
    """
    tensors, gradients, retain_graph, inputs = roots
    if inputs is None and len(tensors) == 1 and getattr(engine, "__globals__", None) is TORCHS:
        (root,), (start,) = tensors, gradients
        if _is_scalar(root) and (start is None or _is_scalar(start)):
            starts = (torch.ones_like(root) if start is None else start, seed)
            how = {"allow_unreachable": True, "accumulate_grad": True}
            run_engine((root, header), starts, bool(retain_graph), False, (), **how)
            return
    engine([*tensors, header], [*gradients, seed], retain_graph, False, inputs=inputs)


def discard(
    engine: BackwardFunction, roots: Roots, parameters: Sequence[Tensor]
) -> tuple[list[bool], BaseException | None]:
    """Run the backward of a rank without samples, and drop its gradients.

    Returns which parameters got a gradient, and the error that the backward raised, or None. The
    caller raises it later: the other ranks may have raised it too, but first wait for this rank.
    """
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        engine(roots.tensors, roots.gradients, roots.retain_graph, False, inputs=roots.inputs)
        return _have_gradients(parameters), None
    except BaseException as error:
        return _have_gradients(parameters), error
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


def _have_gradients(parameters: Sequence[Tensor]) -> list[bool]:
    return [parameter.grad is not None for parameter in parameters]


def fail(error: BaseException | None) -> None:
    """Raise the error, if any, and release it: its traceback refers to the backward's objects."""
    try:
        if error is not None:
            raise error
    finally:
        del error


def _is_scalar(value: object) -> bool:
    return type(value) is Tensor and value.dim() == 0 and value.is_floating_point()


class MeanOverRanks(torch.autograd.Function):
    """The weighted mean of a tensor over ranks.

    Backward returns the gradient unchanged. All ranks compute the same from the mean, and the
    reducer averages the gradients of their parts in the next backward.
    """

    @staticmethod
    def forward(ctx: object, local: Tensor, weight: float) -> Tensor:
        mean = local * (weight / dist.get_world_size())
        dist.all_reduce(mean)
        return mean

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def backward(
    engine: BackwardFunction, parameters: Sequence[Tensor], roots: Roots, count: Count
) -> float:
    """Run ``engine`` with ``create_graph=True``, and average its gradients over ranks.

    All ranks call it with the same parameters. A gradient that no rank makes stays None. Returns
    this rank's weight in the mean.
    """
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    engine(roots.tensors, roots.gradients, True, True, inputs=roots.inputs)
    made = [parameter.grad for parameter in parameters]
    reported = [
        *(float(gradient is not None) for gradient in made),
        float(count.counted),
        float(count.norm),
    ]
    *present, counted, weights = _summed(reported, parameters[0].device)
    weight = float(count.weight) * (dist.get_world_size() / weights if counted and weights else 1.0)
    for kind in dict.fromkeys((parameter.dtype, parameter.device) for parameter in parameters):
        same = [i for i, one in enumerate(parameters) if (one.dtype, one.device) == kind]
        packed = torch.cat([_flat(parameters[i], made[i]) for i in same])
        mean_of_all: Tensor = MeanOverRanks.apply(packed, weight)  # type: ignore[no-untyped-call]
        means = mean_of_all.split([parameters[i].numel() for i in same])
        for i, mean in zip(same, means, strict=True):
            old, new = before[i], mean.view_as(parameters[i]) if present[i] else None
            parameters[i].grad = new if old is None else old if new is None else old + new
    return weight


def _summed(numbers: list[float], device: torch.device) -> list[float]:
    reported = torch.tensor(numbers, dtype=torch.float64, device=device)
    dist.all_reduce(reported)
    summed: list[float] = reported.tolist()
    return summed


def _flat(parameter: Tensor, gradient: Tensor | None) -> Tensor:
    return torch.zeros_like(parameter).reshape(-1) if gradient is None else gradient.reshape(-1)


Held = list[tuple[Tensor, dict[int, Any]]]


def take_off(parameters: Sequence[Any]) -> Held:
    """Remove the post-accumulate hooks of the parameters.

    Returns them with their parameters, in the order in which a backward reaches the parameters.
    """
    if not any(map(hooks_of, parameters)):
        return []
    found = [(parameter, hooks) for parameter in parameters if (hooks := hooks_of(parameter))]
    held = [(parameter, dict(hooks)) for parameter, hooks in reversed(found)]
    for _, hooks in found:
        hooks.clear()
    return held


def put_back(held: Held) -> None:
    for parameter, hooks in held:
        table = hooks_of(parameter)
        assert table is not None  # the table was only cleared
        table.update(hooks)


def user_hooks_run(held: Held) -> None:
    """Call the hooks of parameters that have a gradient, as backward would have."""
    for parameter, hooks in held:
        if parameter.grad is not None:
            for hook in hooks.values():
                hook(parameter)


class TensorHooks:
    """The user's hooks of ``register_hook``, removed until the gradients are synchronised.

    Hooks of plugins stay, because they look at the gradients of this rank.
    """

    def __init__(self, parameters: Iterable[Any]) -> None:
        found = [
            (parameter, hooks) for parameter in parameters if (hooks := tensor_hooks(parameter))
        ]
        users = [
            (parameter, {key: hook for key, hook in hooks.items() if _is_users(hook)})
            for parameter, hooks in found
        ]
        self._held = [(parameter, hooks) for parameter, hooks in users if hooks]

    @classmethod
    def of(cls, parameters: Sequence[Any]) -> TensorHooks | None:
        """Return the hooks of the parameters, or None if there are none."""
        hooks = cls(parameters) if any(map(tensor_hooks, parameters)) else None
        return hooks if hooks is not None and hooks._held else None

    def take_off(self) -> None:
        for parameter, hooks in self._held:
            for key in hooks:
                _table(parameter).pop(key, None)

    def put_back(self) -> None:
        for parameter, hooks in self._held:
            _table(parameter).update(hooks)

    def run(self) -> None:
        """Call the hooks with the gradients of a backward, and use the gradients they return."""
        for parameter, hooks in reversed(self._held):
            for hook in hooks.values() if parameter.grad is not None else ():
                changed = hook(parameter.grad)
                parameter.grad = parameter.grad if changed is None else changed


def _table(parameter: Any) -> dict[int, Any]:
    table = tensor_hooks(parameter)
    assert table is not None  # only its hooks were removed
    return table


def _is_users(hook: Any) -> bool:
    name = getattr(getattr(hook, "func", hook), "__module__", None) or ""
    return not name.startswith(INSIDE)
