"""Errors of fsdp, raised before torch's with the offender and the remedy."""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import LBFGS, Adafactor, Optimizer
from torchbus.plugin import Unsupported, UsageError

from torchbus_sharded._compat import (
    as_plain_tensors,
    names_in,
    original_class,
    pairs_in,
    parameters,
    places_in,
    units_in,
    unsharded,
)
from torchbus_strategy import sharding

OUTSIDE = ("its data is not allocated yet", "for input.numel() == 0")
"""Words of torch's errors about shards outside of forward."""
BY_ITSELF = (
    "{}.forward was called directly, but under strategy='fsdp' only a call of the module gathers"
    " its parameters: call module(x), or read module.forward after the optimizer was made"
)
ASSIGNED = "(torch.nn.Parameter or None expected)"
EXPORTERS = ("torch.jit.", "torch.export.", "torch.onnx.")
PART_FIRST = "FSDP state has already been lazily initialized"


def translate(error: BaseException | None, models: Iterable[Module]) -> Unsupported | None:
    """Return the error that replaces torch's, if torch's is about sharded tensors."""
    if isinstance(error, RuntimeError) and PART_FIRST in str(error):
        return Unsupported(
            "a part of a model was called before the model that its optimizer holds (such as"
            " model.module of a DataParallel, or a block): under strategy='fsdp' the whole model"
            " must be called first. Call the whole in both places, or use strategy='ddp'"
        )
    if error is not None and (exporter := _exporter(error)):
        return Unsupported(
            f"{exporter} of a model under strategy='fsdp': a rank has only a part of it. Make a new"
            " model, load_state_dict(model.state_dict()) into it and export that one, or export the"
            " model after the block"
        )
    is_mixture = sharding.has_sign(error, *OUTSIDE)
    is_assigned = isinstance(error, TypeError) and ASSIGNED in str(error)
    new = _new_parameter(models) if is_mixture or is_assigned else ""
    if new:
        return Unsupported(new)
    if error is not None and is_mixture:
        return _mixture(error, models)
    return sharding.no_entry(error, "of a model that strategy='fsdp' has divided")


def _exporter(error: BaseException) -> str:
    """Return the name of torch's package that failed to export a divided model, or ""."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        name = frame.f_globals.get("__name__", "")
        if name.startswith(EXPORTERS) and _has_divided(frame):
            return ".".join(name.split(".")[:2])
    return ""


def _has_divided(frame: FrameType) -> bool:
    return any(isinstance(one, FSDPModule) for one in frame.f_locals.values())


def _is_by_itself(forward: FrameType, caller: FrameType) -> bool:
    """Whether the script itself calls a unit's forward, not torch or a subclass."""
    module = forward.f_locals.get("self")
    return (
        isinstance(module, FSDPModule)
        and caller.f_locals.get("self") is not module
        and not caller.f_globals["__name__"].startswith("torch")
    )


def _new_parameter(models: Iterable[Module]) -> str:
    for model in models:
        for name, _ in model.named_parameters(remove_duplicate=False):
            if name not in names_in(model):
                return made_later(name, model)
    return ""


def _mixture(error: BaseException, models: Iterable[Module]) -> Unsupported:
    """Explain an error of an operation on shards, by its method or else its line."""
    parts = {
        id(part): original_class(model).__name__ for model in models for part in model.modules()
    }
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    callers = dict(zip(frames[1:], frames, strict=False))
    for frame, _ in sharding.places_of(error):
        owner, method = parts.get(id(frame.f_locals.get("self"))), frame.f_code.co_name
        if method == "forward" and _is_by_itself(frame, callers.get(frame, frame)):
            called = original_class(frame.f_locals["self"])
            return Unsupported(BY_ITSELF.format(called.__name__))
        if owner and method != "forward":
            return Unsupported(
                f"{owner}.{method} uses parameters outside forward. There a rank has only a part of"
                f" each, under strategy='fsdp': pass forward_methods=({method!r},), or use"
                " strategy='ddp'"
            )
    return Unsupported(
        f"{sharding.line_of(error)} mixes parts of parameters or gradients with whole tensors,"
        " which does not work under strategy='fsdp': take tensor.full_tensor(), or use"
        " strategy='ddp'. For an average of the weights, use ema_decay= or swa_start= of"
        " torchbus-average"
    )


TOGETHER = {
    LBFGS: ("all parameters together", "'ddp'"),
    Adafactor: ("whole rows and columns of a parameter", "'ddp_sharded', or Adam"),
}
COPIES = ("__deepcopy__", "__reduce_ex__")


def refuse_optimizer(optimizer: Optimizer) -> None:
    """Raise UsageError for an optimizer whose step needs more than this rank's shards."""
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
    """Raise Unsupported if a parameter was replaced: the engine would restore the earlier one."""
    for there, name, pair in places_in(model):
        one = there.get(name)
        if one is not None and one is not pair.sharded_param and one is not unsharded(pair):
            names = [path for path, other in model.named_parameters() if other is one]
            raise Unsupported(made_later(next(iter(names), name), model))


def made_later(name: str, model: Module) -> str:
    """Return the message about a parameter that the engine does not manage."""
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
    """Wrap ``torch.autograd.grad`` to refuse parameters.

    ``before_graph`` is called before a call that makes a graph of the gradients.
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


GETTER = "__get__"
EMPTIED = [getattr(Tensor, name).__get__ for name in ("grad", "data", "shape")]
KNOWN = (Tensor.__hash__, Tensor.dim, Tensor.__repr__, Tensor.untyped_storage)


class StaleParameter(nn.Parameter):
    """Placeholder of a freed parameter. An optimizer gets the shard in its place.

    Other uses raise Unsupported, because they would be wrong without a message.
    """

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        harmless = function in KNOWN or (
            getattr(function, "__name__", "") == GETTER and function not in EMPTIED
        )
        if not harmless:
            raise Unsupported(
                "a list of parameters that was made before its model was divided (strategy='fsdp')"
                " is empty now: make it after the optimizer, or call model.parameters() when you"
                " need it"
            )
        with as_plain_tensors():
            return function(*args, **(kwargs or {}))


def empty(old: nn.Parameter) -> None:
    """Free the values of a parameter, and make it a ``StaleParameter``."""
    if not isinstance(old, StaleParameter):  # a shared parameter has two names
        old.data = old.data.new_empty(0)
        old.__class__ = StaleParameter
