"""The strategy ``ddp_sharded``: ddp, with the optimizer's state divided over the ranks."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torchbus.plugin import Context, Unsupported, UsageError, hookimpl

from torchbus_sharded.optimizers.added_methods import surround
from torchbus_sharded.zero1.hidden import HiddenParameters
from torchbus_sharded.zero1.owners import EVERY_RANK, Owners
from torchbus_sharded.zero1.sending import send

T = TypeVar("T")


class ShardedOptimizer:
    """Each rank steps its part of the parameters, and sends them to the others (ZeRO stage 1).

    Only that rank keeps their optimizer state. The strategy ddp, which comes along, averages the
    gradients; its options are accepted too.

    Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models, SC 2020.
    """

    companions = ("ddp", "sampler")

    @hookimpl
    def session_start(self, session: Context) -> None:
        if session.bus.hook.parameters_may_differ(session=session):
            raise UsageError(
                "strategy='ddp_sharded' with ranks that step by themselves"
                " (gradient_algorithm='local_sgd' and others that average models): each parameter"
                " is stepped by one rank, which would know only its own data. Use strategy='ddp',"
                " or an algorithm that averages gradients, such as 'fp16'"
            )
        if session.world_size > 1:
            # last of all: clipping must see every gradient
            session.bus.register(ShardedSteps(session), "sharded.steps")

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]]:
        return {
            "states": [
                f"divided over {session.world_size} ranks: each steps its part of the parameters,"
                " and sends them to the others"
            ]
        }


class ShardedSteps:
    """Divides the parameters before every optimizer's step, and sends them around after it."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._owners: weakref.WeakKeyDictionary[Optimizer, Owners] = weakref.WeakKeyDictionary()
        self._own: weakref.WeakKeyDictionary[Optimizer, set[int]] = weakref.WeakKeyDictionary()
        self._hidden = HiddenParameters()
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._complete: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        session.on_close.push(self._give_whole)

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if optimizer is None or not self._session.captures(optimizer):
            return
        if isinstance(optimizer, LBFGS) or takes_more_than_a_closure(optimizer):
            name = type(optimizer).__name__
            raise UsageError(
                f"strategy='ddp_sharded' with {name}: its step looks at all parameters together;"
                " use strategy='ddp'"
            )
        if optimizer not in self._owners:
            self._owners[optimizer] = Owners(self._session.world_size)
            stack = self._session.on_close
            stack.callback(optimizer.register_state_dict_post_hook(self._gather).remove)
            stack.callback(optimizer.register_load_state_dict_post_hook(self._keep_own).remove)
            stack.callback(surround(optimizer, functools.partial(self._make_whole, optimizer)))
            vars(optimizer)["__getstate__"] = lambda: _no_copy(type(optimizer).__name__)
            stack.callback(vars(optimizer).pop, "__getstate__")
        owners, own = self._owners[optimizer], self._own.get(optimizer, set())
        owners.add(
            [
                None if id(parameter) in own else parameter.numel()
                for parameter in _parameters(optimizer)[len(owners.of) :]
            ]
        )
        self._keep_own(optimizer)

    @hookimpl
    def own_tensors(self, optimizer: Optimizer, tensors: list[Tensor]) -> None:
        self._own.setdefault(optimizer, set()).update(map(id, tensors))

    @hookimpl(trylast=True)
    def gradients_ready(self, optimizer: Optimizer) -> None:
        """Show the step that follows only this rank's parameters."""
        if optimizer not in self._owners or self._hidden:
            return
        if optimizer in self._complete:
            self._complete.discard(optimizer)
            self._keep_own(optimizer)
        self._stepped.add(optimizer)
        self._hidden.hide(optimizer, map(self._is_own, self._owners[optimizer].of))

    def _is_own(self, owner: int) -> bool:
        return owner in (self._session.rank, EVERY_RANK)

    @hookimpl(tryfirst=True)
    def step_failed(self, optimizer: Optimizer) -> None:
        if self._hidden:
            self._hidden.show_after_error(optimizer)

    @hookimpl(tryfirst=True)
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        """Send every rank what the others have stepped."""
        if not self._hidden:
            return
        self._hidden.show()
        assert self._session.job is not None
        self._session.job.wait_in(f"{type(optimizer).__name__}.step")
        send(_parameters(optimizer), self._owners[optimizer].of, self._session.world_size)
        self._session.job.go_on()

    def _gather(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Make ``optimizer.state_dict()`` whole, on all ranks. All of them call it."""
        whole: dict[int, dict[str, object]] = {}
        for part in self._session.all_gather_object(_to(state_dict["state"], torch.device("cpu"))):
            # a loop that looks at the state of another rank's parameter leaves an empty entry
            whole |= {key: entry for key, entry in part.items() if entry or key not in whole}
        return {**state_dict, "state": dict(sorted(whole.items()))}

    def _keep_own(self, optimizer: Optimizer) -> None:
        """Drop the state of other ranks' parameters: loaded, or from before the block."""
        for parameter, owner in zip(
            _parameters(optimizer), self._owners[optimizer].of, strict=True
        ):
            if not self._is_own(owner):
                optimizer.state.pop(parameter, None)

    def _make_whole(self, optimizer: Optimizer, method: str) -> None:
        """Give each rank the whole state until the next step, before a method of the class runs.

        The method may read or change the state of any parameter. All ranks call it.
        """
        if self._hidden or optimizer not in self._stepped or optimizer in self._complete:
            return
        assert self._session.job is not None
        self._session.job.wait_in(f"{type(optimizer).__name__}.{method}")
        _fill(optimizer, optimizer.state_dict()["state"])
        self._session.job.go_on()
        self._complete.add(optimizer)

    def _give_whole(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Leave rank 0 the whole state, once all ranks have come to the end."""
        for optimizer in list(self._owners) if error is None else []:
            _fill(optimizer, self._gather(optimizer, optimizer.state_dict())["state"])

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        """Explain a KeyError: the state of a parameter is on only one rank."""
        names = {
            name
            for optimizer in self._owners
            for entry in optimizer.state.values()
            for name in entry
        }
        if isinstance(error, KeyError) and error.args and error.args[0] in names:
            raise Unsupported(
                f"optimizer.state[parameter] has no {error.args[0]!r}: under strategy='ddp_sharded'"
                " the state of each parameter is on one rank. Read optimizer.state_dict(), which"
                " is whole, on all ranks, or use strategy='ddp'"
            ) from error

    @hookimpl
    def describe(self, thing: object) -> str | None:
        if not isinstance(thing, Optimizer) or thing not in self._owners:
            return None
        own = sum(map(self._is_own, self._owners[thing].of))
        return f"this rank keeps the state of {own} of {len(self._owners[thing].of)} tensors"


def takes_more_than_a_closure(optimizer: Optimizer) -> bool:
    """Whether its step takes something else, such as a loss (Polyak's step size).

    Such a step weighs the loss against the norm of all gradients.
    """
    first = [
        one
        for one in inspect.signature(type(optimizer).step).parameters.values()
        if one.kind is one.POSITIONAL_OR_KEYWORD
    ][1:2]
    return any(one.name != "closure" for one in first)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _fill(optimizer: Optimizer, whole: Mapping[int, object]) -> None:
    """Add the state of the parameters that other ranks step."""
    for index, parameter in enumerate(_parameters(optimizer)):
        if not optimizer.state.get(parameter) and index in whole:
            optimizer.state[parameter] = _to(whole[index], parameter.device)


def _no_copy(name: str) -> NoReturn:
    raise Unsupported(
        f"pickling or copying {name} under strategy='ddp_sharded' (torch.save(optimizer),"
        " copy.deepcopy): a rank has only a part of its state. Save optimizer.state_dict(), which"
        " is whole, or use strategy='ddp'"
    )


def _to(value: T, device: torch.device) -> T:
    """The same nested dicts, with their tensors on this device."""
    moved: object = value
    if isinstance(value, Tensor):
        moved = value.to(device)
    elif isinstance(value, dict):
        moved = {key: _to(item, device) for key, item in value.items()}
    return cast(T, moved)
