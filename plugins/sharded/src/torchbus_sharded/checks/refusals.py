"""What fsdp refuses before torch does, in words that name the offender and the remedy."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import LBFGS, Adafactor, Optimizer
from torchbus.plugin import Unsupported, UsageError

from torchbus_sharded._compat.fsdp2 import original_class, pairs_in, places_in, units_in, unsharded
from torchbus_sharded._compat.tensors import parameters
from torchbus_sharded.checks.stale import StaleParameter

TOGETHER = {
    LBFGS: ("all parameters together", "'ddp'"),
    Adafactor: ("whole rows and columns of a parameter", "'ddp_sharded', or Adam"),
}
COPIES = ("__deepcopy__", "__reduce_ex__")


def refuse_optimizer(optimizer: Optimizer) -> None:
    """Raise UsageError for an optimizer whose step needs more than this rank's parts."""
    for cls, (what, remedy) in TOGETHER.items():
        if isinstance(optimizer, cls):
            raise UsageError(
                f"strategy='fsdp' with {cls.__name__}: its step looks at {what}, of which a rank"
                f" has only a part; use {remedy}"
            )


def refuse_copies(model: Module) -> Callable[[], None]:
    """Make ``copy.deepcopy(model)`` and ``pickle`` (``torch.save(model)``) raise Unsupported.

    Returns a function that allows them again.
    """
    name = original_class(model).__name__
    units = weakref.WeakSet(units_in(model))
    for unit in units:
        vars(unit).update(
            __deepcopy__=lambda memo: _no_copy(name),
            __reduce_ex__=lambda protocol: _no_pickle(name),
        )

    def undo() -> None:
        for unit in units:
            for each in COPIES:
                vars(unit).pop(each, None)

    return undo


def _no_copy(name: str) -> NoReturn:
    raise Unsupported(
        f"copy.deepcopy of {name} under strategy='fsdp': a rank has only a part of it. Make the"
        " copy before its optimizer, or make a new model and load_state_dict(model.state_dict());"
        " under ddp_sharded and ddp, models can be copied"
    )


def _no_pickle(name: str) -> NoReturn:
    raise Unsupported(
        f"pickling {name} under strategy='fsdp' (torch.save(model), or a process that gets it): a"
        " rank has only a part of it. Save model.state_dict(), which is whole, or save the model"
        " after the block"
    )


def refuse_borrowed(model: Module) -> None:
    """Raise Unsupported if ``functional_call`` has replaced the parameters by other tensors."""
    if any(
        one is not None and not isinstance(one, nn.Parameter)
        for module in model.modules()
        for one in parameters(module).values()
    ):
        raise Unsupported(
            f"functional_call of {original_class(model).__name__} with other weights under"
            " strategy='fsdp': its own parts would be gathered in their place; use strategy='ddp'"
            " or 'dp'"
        )


def refuse_replaced(model: Module) -> None:
    """Raise Unsupported if a parameter is another object now: the engine puts its own back."""
    for there, name, pair in places_in(model):
        one = there.get(name)
        if one is not None and one is not pair.sharded_param and one is not unsharded(pair):
            names = [path for path, other in model.named_parameters() if other is one]
            raise Unsupported(made_later(next(iter(names), name), model))


def made_later(name: str, model: Module) -> str:
    """What is said of a parameter that the engine does not have."""
    return (
        f"{name} of {original_class(model).__name__} was made after strategy='fsdp' had divided the"
        " model (by an assignment, torch.nn.utils.prune, a parametrisation): make it before the"
        " optimizer, write into the one that is there, or use strategy='ddp'"
    )


Inputs = Tensor | Sequence[Tensor]
Grad = Callable[..., tuple[Tensor, ...]]


def refuse_derivatives(
    models: Iterable[Module], before_graph: Callable[[], None]
) -> Callable[[Grad], Grad]:
    """Make a ``torch.autograd.grad`` that refuses parameters, out of torch's.

    ``before_graph`` is called before one that makes a graph of the gradients.
    """

    def make(original: Grad) -> Grad:
        def grad(
            outputs: Inputs,
            inputs: Inputs,
            grad_outputs: object = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            *args: object,
            **kwargs: object,
        ) -> tuple[Tensor, ...]:
            asked = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
            _refuse_parameters(models, asked)
            if create_graph:
                before_graph()
            return original(
                outputs, asked, grad_outputs, retain_graph, create_graph, *args, **kwargs
            )

        return grad

    return make


def _refuse_parameters(models: Iterable[Module], asked: Sequence[Tensor]) -> None:
    gathered = {id(unsharded(pair)) for model in models for pair in pairs_in(model)}
    if any(isinstance(one, DTensor | StaleParameter) or id(one) in gathered for one in asked):
        raise Unsupported(
            "torch.autograd.grad for parameters under strategy='fsdp': a rank would get the"
            " gradient of only its own samples. Use backward(), or strategy='ddp'"
        )
