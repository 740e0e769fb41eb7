"""The strategy ``ddp_sharded``: ddp, with the optimizer's state divided over the ranks."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torchbus.plugin import Context, Unsupported, UsageError, hookimpl

from torchbus_sharded.optimizers.own_methods import surround
from torchbus_sharded.zero1.owners import EVERY_RANK, Owners


class ShardedOptimizer:
    """Each rank steps its part of the parameters, whose state it alone keeps, and sends them to the others (ZeRO stage 1).

    Gradients are averaged by the strategy ddp, which it brings along; its options are taken too.

    Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020.
    """

    companions = ("ddp", "sampler")

    @hookimpl
    def session_start(self, session: Context) -> None:
        if session.bus.hook.parameters_may_differ(session=session):
            raise UsageError(
                "strategy='ddp_sharded' with ranks that step by themselves (gradient_algorithm='local_sgd' and others that average models): each "
                "parameter is stepped by one rank, which would know its own data only. Use strategy='ddp', or an algorithm that averages gradients, "
                "such as 'fp16'"
            )
        if session.world_size > 1:
            session.bus.register(Steps(session), "sharded.steps")  # last of all: clipping must see every gradient

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]]:
        return {"states": [f"divided over {session.world_size} ranks: each steps its part of the parameters, and sends them to the others"]}


class Steps:
    """Around every optimizer's step."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._owners: weakref.WeakKeyDictionary[Optimizer, Owners] = weakref.WeakKeyDictionary()
        self._own: weakref.WeakKeyDictionary[Optimizer, set[int]] = weakref.WeakKeyDictionary()
        self._whole: list[list[Any]] = []
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._complete: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        session.on_close.push(self._give_whole)

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if optimizer is None or not self._session.captures(optimizer):
            return
        if isinstance(optimizer, LBFGS) or takes_more_than_a_closure(optimizer):
            name = type(optimizer).__name__
            raise UsageError(f"strategy='ddp_sharded' with {name}: its step looks at all parameters together; use strategy='ddp'")
        if optimizer not in self._owners:
            self._owners[optimizer] = Owners(self._session.world_size)
            stack = self._session.on_close
            stack.callback(optimizer.register_state_dict_post_hook(self._gather).remove)
            stack.callback(optimizer.register_load_state_dict_post_hook(self._keep_own).remove)
            stack.callback(surround(optimizer, functools.partial(self._make_whole, optimizer)))
            vars(optimizer)["__getstate__"] = lambda: _no_copy(type(optimizer).__name__)
            stack.callback(vars(optimizer).pop, "__getstate__")
        owners, own = self._owners[optimizer], self._own.get(optimizer, set())
        owners.add([None if id(parameter) in own else parameter.numel() for parameter in _parameters(optimizer)[len(owners.of) :]])
        self._keep_own(optimizer)

    @hookimpl
    def own_tensors(self, optimizer: Optimizer, tensors: list[Tensor]) -> None:
        self._own.setdefault(optimizer, set()).update(map(id, tensors))

    @hookimpl(trylast=True)
    def before_optimizer_step(self, optimizer: Optimizer, closure: Any) -> None:
        if closure is None:
            self.after_closure(optimizer)

    @hookimpl(trylast=True)
    def after_closure(self, optimizer: Optimizer) -> None:
        """The step that follows sees this rank's parameters alone."""
        if optimizer not in self._owners or self._whole:
            return
        if optimizer in self._complete:
            self._complete.discard(optimizer)
            self._keep_own(optimizer)
        self._stepped.add(optimizer)
        self._whole = [group["params"] for group in optimizer.param_groups]
        owner = iter(self._owners[optimizer].of)
        for group in optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if next(owner) in (self._session.rank, EVERY_RANK)]

    @hookimpl(tryfirst=True)
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        """Every rank gets what the others have stepped."""
        if not self._whole:
            return
        for group, parameters in zip(optimizer.param_groups, self._whole, strict=True):
            group["params"] = parameters
        self._whole = []
        self._send(optimizer)

    def _send(self, optimizer: Optimizer) -> None:
        held = list(zip(_parameters(optimizer), self._owners[optimizer].of, strict=True))
        for rank in range(self._session.world_size):
            for kind in dict.fromkeys((p.dtype, p.device) for p, owner in held if owner == rank):
                _broadcast([p for p, owner in held if owner == rank and (p.dtype, p.device) == kind], rank)

    def _gather(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        """``optimizer.state_dict()`` is the whole one, on all ranks. All of them call it."""
        whole: dict[Any, Any] = {}
        for part in self._session.all_gather_object(_to(state_dict["state"], torch.device("cpu"))):
            whole |= {key: entry for key, entry in part.items() if entry or key not in whole}  # one may have looked at what it does not keep
        return {**state_dict, "state": dict(sorted(whole.items()))}

    def _keep_own(self, optimizer: Optimizer) -> None:
        """Of what was there before the block, or of what ``load_state_dict`` has read."""
        for parameter, owner in zip(_parameters(optimizer), self._owners[optimizer].of, strict=True):
            if owner not in (self._session.rank, EVERY_RANK):
                optimizer.state.pop(parameter, None)

    def _make_whole(self, optimizer: Optimizer, method: str) -> None:
        """One of the optimizer's own methods is called, on all ranks, which may read the state of any parameter, or change it: until the
        next step each rank has all of it."""
        if self._whole or optimizer not in self._stepped or optimizer in self._complete:
            return
        assert self._session.job is not None
        self._session.job.wait_in(f"{type(optimizer).__name__}.{method}")
        _fill(optimizer, optimizer.state_dict()["state"])
        self._session.job.go_on()
        self._complete.add(optimizer)

    def _give_whole(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Rank 0 goes on with the whole state, once all ranks have come to the end."""
        for optimizer in list(self._owners) if error is None else []:
            _fill(optimizer, self._gather(optimizer, optimizer.state_dict())["state"])

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        """A loop that looks at the state of a parameter finds it on one rank alone."""
        names = {name for optimizer in self._owners for entry in optimizer.state.values() for name in entry}
        if isinstance(error, KeyError) and error.args and error.args[0] in names:
            raise Unsupported(
                f"optimizer.state[parameter] has no {error.args[0]!r}: under strategy='ddp_sharded' the state of each parameter is on one rank. "
                "Read optimizer.state_dict(), which is whole, on all ranks, or use strategy='ddp'"
            ) from error

    @hookimpl
    def describe(self, thing: Any) -> str | None:
        if not isinstance(thing, Optimizer) or thing not in self._owners:
            return None
        own = sum(owner in (self._session.rank, EVERY_RANK) for owner in self._owners[thing].of)
        return f"this rank keeps the state of {own} of {len(self._owners[thing].of)} tensors"


def takes_more_than_a_closure(optimizer: Optimizer) -> bool:
    """Whether its step takes a loss, say (Polyak's step size), and so weighs it against the norm of all gradients."""
    first = [one for one in inspect.signature(type(optimizer).step).parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD][1:2]
    return any(one.name != "closure" for one in first)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _fill(optimizer: Optimizer, whole: Mapping[Any, Any]) -> None:
    """With the state of the parameters that other ranks step."""
    for index, parameter in enumerate(_parameters(optimizer)):
        if not optimizer.state.get(parameter) and index in whole:
            optimizer.state[parameter] = _to(whole[index], parameter.device)


def _no_copy(name: str) -> NoReturn:
    raise Unsupported(
        f"pickling or copying {name} under strategy='ddp_sharded' (torch.save(optimizer), copy.deepcopy): a rank has a part of its state alone. Save "
        "optimizer.state_dict(), which is whole, or use strategy='ddp'"
    )


def _broadcast(tensors: list[Tensor], source: int) -> None:
    packed = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    dist.broadcast(packed, source)
    if dist.get_rank() != source:
        for tensor, part in zip(tensors, packed.split([one.numel() for one in tensors]), strict=True):
            tensor.data.copy_(part.view_as(tensor))


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _to(item, device) for key, item in value.items()}
    return value
