"""Hooks around each forward of a sharded model.

They check that all ranks are here, and keep torch's engine from making wrong gradients."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import torch
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.nn import Module
from torchbus.plugin import Context

from torchbus_sharded._compat import (
    can_reset,
    current_graph_task_id,
    gather_ahead,
    let_go_of_early,
    names_in,
    original_class,
    pairs_in,
    places_in,
    reset,
    units_in,
    unsharded,
)
from torchbus_sharded.agreement import Agreement
from torchbus_sharded.refusals import refuse_borrowed, refuse_derivatives, refuse_replaced
from torchbus_sharded.writes import ShardWrites

CLOSELY = 3
"""Number of backwards that compare the ranks before each gather; later ones compare at the end."""
T = TypeVar("T")


class ForwardHooks:
    """Hooks on the model and its units, in front of torch's own."""

    def __init__(self, session: Context, agreement: Agreement) -> None:
        self._session = session
        self._agreement = agreement
        self._prefetch = Prefetch(session)
        self.writes = ShardWrites(session, agreement)
        self._watches = True
        self._roots: weakref.WeakSet[Module] = weakref.WeakSet()
        self._begun: weakref.WeakSet[Module] = weakref.WeakSet()
        self._failed: weakref.WeakSet[Module] = weakref.WeakSet()
        self._forwards: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        refusing = refuse_derivatives(self._roots, self.keep_gathered)
        session.replace(torch.autograd, "grad", refusing)

    def add(self, model: Module, number: int) -> None:
        name = f"{original_class(model).__name__}, model {number}"
        self._roots.add(model)
        names_in(model)
        places_in(model)
        self._prefetch.add(model)
        self.writes.add(model)
        stack = self._session.on_close
        for path, module in model.named_modules():
            if issubclass(type(module), FSDPModule):
                before = functools.partial(self._before, name, path)
                stack.callback(module.register_forward_pre_hook(before, prepend=True).remove)
        stack.callback(model.register_forward_hook(self._after).remove)

    def surround(self, model: Module, method: str, number: int) -> None:
        """Let a method gather the parameters as a call of the model does.

        It does not gather them again inside such a call, or inside another such method.
        """
        replaced, original = vars(model).get(method), getattr(model, method)
        register_fsdp_forward_method(model, method)
        name = f"{original_class(model).__name__}.{method}, model {number}"
        made = self._surrounded(model, name, original, vars(model)[method])
        vars(model)[method] = made
        self._session.on_close.callback(_put_back, weakref.ref(model), method, replaced)

    def _surrounded(
        self, model: Module, name: str, original: Callable[..., T], gathering: Callable[..., T]
    ) -> Callable[..., T]:
        @functools.wraps(original)
        def call(*args: object, **kwargs: object) -> T:
            if torch.compiler.is_compiling() or model in self._begun:
                return original(*args, **kwargs)
            self._before(name, "", model, args)
            outputs = gathering(*args, **kwargs)
            self._after(model, args, outputs)
            return outputs

        return call

    def _before(self, name: str, path: str, module: Module, args: object) -> None:
        if torch.compiler.is_compiling():
            return
        by_itself = not (path and self._begun)
        if by_itself and current_graph_task_id() == -1:  # not in a backward
            let_go_of_early(module)
        if path:
            self.writes.refresh(module)
        if path and not self._watches:
            self._agreement.passing(path)
            return
        if path:
            self._prefetch.passing(module)
        else:
            self._begin(module)
        trains = torch.is_grad_enabled()
        kind = "training" if trains else "without gradients"
        meet = self._agreement.enter if trains and not self._watches else self._agreement.sync
        meet(f"{f'part {path} of ' if path else ''}the forward of {name} ({kind})")

    def _begin(self, model: Module) -> None:
        refuse_borrowed(model)
        refuse_replaced(model)
        if model in self._begun or model in self._failed:
            reset(model)  # the loop has caught an exception of the last forward
        self._begun.add(model)
        self.writes.begin(model)
        if torch.is_inference_mode_enabled():
            _gather_outside(model)
        if model in self._forwards:
            _reshard(model)  # an optimizer may have changed the shards since the last forward
        if torch.is_grad_enabled():
            self._prefetch.begin(model)

    def _after(self, model: Module, args: object, outputs: object) -> None:
        self._begun.discard(model)
        self._prefetch.end()
        if torch.is_grad_enabled():
            self._count(model)
        if not torch.is_grad_enabled() or any(
            pair.sharded_param.grad is not None for pair in pairs_in(model)
        ):
            # What the loop does to parameters between forwards, such as `model.zero_grad()`, must
            # apply to the shards.
            _reshard(model)

    def _count(self, model: Module) -> None:
        self._forwards[model] = self._forwards.get(model, 0) + 1
        if self._forwards[model] == 2:
            # One backward may go through both forwards: the one that ends first would free the
            # parameters while the other still needs them.
            units_in(model)[0].set_reshard_after_backward(False)

    def keep_gathered(self) -> None:
        """Keep parameters gathered until the next backward has ended.

        That backward also goes through the graph that a derivative makes now.
        """
        for model in self._forwards:
            self._forwards[model] = max(self._forwards[model], 2)
            units_in(model)[0].set_reshard_after_backward(False)

    def stop_watching(self) -> None:
        """Compare the ranks less often from now on."""
        self._watches = False
        self._prefetch.start(self.writes.trust_versions())

    def reset_all(self) -> None:
        """Reset all models after a backward has failed.

        If this torch can't reset a model, its next forward raises Unsupported.
        """
        for model in self._roots:
            if can_reset(model):
                reset(model)
            else:
                self._failed.add(model)

    def end(self) -> None:
        """Free parameters that stayed gathered for this backward, which has ended."""
        for model, forwards in self._forwards.items():
            if forwards > 1:
                _reshard(model)
                units_in(model)[0].set_reshard_after_backward(True)
        self._forwards.clear()


def _put_back(reference: weakref.ref[Module], method: str, replaced: object) -> None:
    """Restore the method of the class, or the script's replacement of it."""
    model = reference()
    if model is not None:
        vars(model).pop(method, None)
        vars(model).update({} if replaced is None else {method: replaced})


def _gather_outside(model: Module) -> None:
    """Gather each unit once outside of inference_mode.

    Parameters that are first gathered under inference_mode could not be trained later.
    """
    if any(unsharded(pair) is None for pair in pairs_in(model)):
        with torch.inference_mode(False), torch.no_grad():
            for unit in units_in(model):
                unit.unshard()
                unit.reshard()


def _reshard(model: Module) -> None:
    for unit in units_in(model):
        unit.reshard()


class Prefetch:
    """Learns the order of the units from the first forwards.

    A later forward with another order gathers each unit on demand.
    """

    def __init__(self, session: Context) -> None:
        self._learns = session.device.type == "cpu"
        self._orders: weakref.WeakKeyDictionary[Module, list[list[Module]]] = (
            weakref.WeakKeyDictionary()
        )
        self._order: list[Module] = []

    def add(self, model: Module) -> None:
        """Let the units of a model be prefetched in backward without waiting."""
        for unit in units_in(model) if self._learns else []:
            gather_ahead(unit)

    def begin(self, model: Module) -> None:
        """Begin to record the order of a forward for training."""
        if self._learns:
            self._order = []
            self._orders.setdefault(model, []).append(self._order)

    def passing(self, unit: Module) -> None:
        self._order.append(unit)

    def end(self) -> None:
        """End the order, because the forward has ended.

        Units that are called separately have no order.
        """
        self._order = []

    def start(self, forwards: bool) -> None:
        """Prefetch from now on. All ranks have passed the same units, so they decide the same.

        ``forwards`` says whether to prefetch in forwards too. This would be wrong if forwards write
        to shards without a trace.
        """
        for model, orders in self._orders.items() if forwards else ():
            first = orders[0]
            if all(order == first for order in orders) and len(set(map(id, first))) == len(first):
                for unit, following in pairwise([model, *first]):
                    unit.set_modules_to_forward_prefetch([following])  # type: ignore[operator]
        self._orders.clear()
        self._learns = False
