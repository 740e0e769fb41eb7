"""``ddp_sharded``: ddp whose optimizer states are sharded over ranks (ZeRO stage 1).

The strategy ddp averages the gradients. Only the choice between the stages leads to ``fully_shard``
here."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Iterable, Mapping, Sequence
from operator import methodcaller
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torchbus.compat.python import current_frame
from torchbus.compat.torch_names import version
from torchbus.plugin import Context, Unsupported, UsageError, expect, hookimpl
from torchbus.tree import map_tensors

from torchbus_sharded._compat import step_post_hooks
from torchbus_sharded.optimizers import parameters_of, surround
from torchbus_sharded.strategy import FSDP


class ShardedGradients(FSDP):
    """ZeRO stage 2 (torch's SHARD_GRAD_OP): gradients and optimizer states are sharded.

    Parameters are whole from forward to the end of backward.

    Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models, SC 2020.
    """

    def __init__(self) -> None:
        super().__init__(reshard_after_forward=False)

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]]:
        if session.world_size == 1:
            return super().explain_lines(session)
        line = (
            "ddp_sharded: gradients and optimizer states are divided over ranks, by the engine of"
            " fsdp; parameters are whole from forward to the "
        )
        return {"strategy": [line + "end of backward, and divided between steps"]}


def ddp_sharded(*, shard_gradients: bool = False) -> ShardedOptimizer | ShardedGradients:
    """Shards optimizer states over ranks.

    Args:
        shard_gradients: whether to divide gradients as well as optimizer states. This uses the
            engine of fsdp, which refuses what fsdp refuses.
    """
    expect("shard_gradients", shard_gradients, bool, "True or False")
    return ShardedGradients() if shard_gradients else ShardedOptimizer()


class ShardedOptimizer:
    """Each rank steps its part of the parameters, and sends them to the others (ZeRO stage 1).

    Only that rank holds the optimizer state of these parameters. The strategy ddp, which is added,
    averages the gradients. Its options are accepted too.

    Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models, SC 2020.
    """

    companions = ("ddp", "sampler")

    @hookimpl
    def session_start(self, session: Context) -> None:
        if session.bus.hook.parameters_may_differ(session=session):
            raise UsageError(
                "strategy='ddp_sharded' with ranks that step independently"
                " (gradient_algorithm='local_sgd' and others that average models): each parameter"
                " is stepped by one rank, which would see only its own data. Use strategy='ddp',"
                " or an algorithm that averages gradients, such as 'fp16'"
            )
        if session.world_size > 1:
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
    """Restricts each optimizer step to this rank's parameters, and broadcasts them afterwards."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._owners: weakref.WeakKeyDictionary[Optimizer, Owners] = weakref.WeakKeyDictionary()
        self._per_rank: weakref.WeakKeyDictionary[Optimizer, set[int]] = weakref.WeakKeyDictionary()
        self._hidden = HiddenParameters()
        self._hiding: Hiding | None = None
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._complete: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        session.on_close.push(self._give_whole)

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if optimizer is None or not self._session.captures(optimizer):
            return
        name = type(optimizer).__name__
        if isinstance(optimizer, LBFGS) or takes_more_than_a_closure(optimizer):
            raise UsageError(
                f"strategy='ddp_sharded' with {name}: its step looks at all parameters together;"
                " use strategy='ddp'"
            )
        if optimizer not in self._owners:
            if self._hiding is None:  # after all other listeners, which see every gradient
                self._hiding = Hiding(self)
                self._session.bus.register(self._hiding, "sharded.hiding")
            self._owners[optimizer] = Owners(self._session.world_size)
            stack = self._session.on_close
            shows = optimizer.register_step_post_hook(self._show_before_hooks)
            step_post_hooks(optimizer).move_to_end(shows.id, last=False)
            stack.callback(shows.remove)
            stack.callback(optimizer.register_state_dict_post_hook(self._gather).remove)
            stack.callback(optimizer.register_load_state_dict_post_hook(self._keep_local).remove)
            stack.callback(surround(optimizer, functools.partial(self._make_whole, optimizer)))
            vars(optimizer)["__getstate__"] = lambda: _no_copy(name)  # makes no reference cycle
            stack.callback(vars(optimizer).pop, "__getstate__")
        owners, local = self._owners[optimizer], self._per_rank.get(optimizer, set())
        new = parameters_of(optimizer)[len(owners.of) :]
        owners.add([None if id(one) in local else one.numel() for one in new])
        self._keep_local(optimizer)

    @hookimpl
    def own_tensors(self, optimizer: Optimizer, tensors: list[Tensor]) -> None:
        self._per_rank.setdefault(optimizer, set()).update(map(id, tensors))

    def hide(self, optimizer: Optimizer) -> None:
        """Leave only this rank's parameters in the groups for the step that follows."""
        if optimizer not in self._owners or self._hidden:
            return
        if optimizer in self._complete:
            self._complete.discard(optimizer)
            self._keep_local(optimizer)
        self._stepped.add(optimizer)
        self._hidden.hide(optimizer, map(self._is_local, self._owners[optimizer].of))

    def _is_local(self, owner: int) -> bool:
        return owner in (self._session.rank, EVERY_RANK)

    @hookimpl(tryfirst=True)
    def step_failed(self, optimizer: Optimizer) -> None:
        if self._hidden:
            self._hidden.show_after_error(optimizer)

    @hookimpl(tryfirst=True)
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        """Broadcast the stepped parameters to all ranks."""
        if not self._hidden:
            return
        self._hidden.show()
        assert self._session.job is not None
        self._session.job.wait_in(f"{type(optimizer).__name__}.step")
        send(parameters_of(optimizer), self._owners[optimizer].of, self._session.world_size)
        self._session.job.go_on()

    def _show_before_hooks(self, optimizer: Optimizer, *_: object) -> None:
        """Let the script's hooks of this step see the parameters of all ranks.

        A step inside another one changes nothing: a subclass's step continues after its parent's.
        """
        step = current_frame(1)
        outer = step.f_back
        while outer is not None:
            if outer.f_code is step.f_code:
                return
            outer = outer.f_back
        self.after_optimizer_step(optimizer)

    def _gather(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Make ``optimizer.state_dict()`` whole. All ranks must call it."""
        whole: dict[int, dict[str, object]] = {}
        for part in self._session.all_gather_object(map_tensors(state_dict["state"], Tensor.cpu)):
            # a loop that reads the state of another rank's parameter leaves an empty entry
            whole |= {key: entry for key, entry in part.items() if entry or key not in whole}
        return {**state_dict, "state": dict(sorted(whole.items()))}

    def _keep_local(self, optimizer: Optimizer) -> None:
        """Drop the state of other ranks' parameters, if it was loaded or made before the block."""
        for parameter, owner in zip(
            parameters_of(optimizer), self._owners[optimizer].of, strict=True
        ):
            if not self._is_local(owner):
                optimizer.state.pop(parameter, None)

    def _make_whole(self, optimizer: Optimizer, method: str) -> None:
        """Gather the whole state on each rank before ``method``, until the next step.

        ``method`` is one that the optimizer's class adds, and may use the state of any parameter.
        All ranks call it.
        """
        if self._hidden or optimizer not in self._stepped or optimizer in self._complete:
            return
        assert self._session.job is not None
        self._session.job.wait_in(f"{type(optimizer).__name__}.{method}")
        _fill(optimizer, optimizer.state_dict()["state"])
        self._session.job.go_on()
        self._complete.add(optimizer)

    def _give_whole(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Gather the whole state on rank 0 at the end of the block."""
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
        mine = sum(map(self._is_local, self._owners[thing].of))
        return f"this rank keeps the state of {mine} of {len(self._owners[thing].of)} tensors"


class Hiding:
    """Begins the part of a step that sees only this rank's parameters."""

    def __init__(self, steps: ShardedSteps) -> None:
        self._steps = steps

    @hookimpl(trylast=True)
    def gradients_ready(self, optimizer: Optimizer) -> None:
        self._steps.hide(optimizer)


def takes_more_than_a_closure(optimizer: Optimizer) -> bool:
    """Whether a step's first argument is not a closure but, for example, a loss.

    Such a step (Polyak's step size) compares the loss with the norm of all gradients.
    """
    first = [
        one
        for one in inspect.signature(type(optimizer).step).parameters.values()
        if one.kind is one.POSITIONAL_OR_KEYWORD
    ][1:2]
    return any(one.name != "closure" for one in first)


def _fill(optimizer: Optimizer, whole: Mapping[int, object]) -> None:
    """Add the state of the parameters that other ranks step."""
    for index, parameter in enumerate(parameters_of(optimizer)):
        if not optimizer.state.get(parameter) and index in whole:
            to_device = methodcaller("to", parameter.device)
            optimizer.state[parameter] = map_tensors(whole[index], to_device)


def _no_copy(name: str) -> NoReturn:
    raise Unsupported(
        f"pickling or copying {name} under strategy='ddp_sharded' (torch.save(optimizer),"
        " copy.deepcopy): a rank has only a part of its state. Save optimizer.state_dict(), which"
        " is whole, or use strategy='ddp'"
    )


HALF_DONE = (
    "{}.step() has raised after it had changed parameters. Under strategy='ddp_sharded' each rank"
    " steps different parameters, so the parameters that one process would have changed are"
    " unknown. Let the error end the run, or use strategy='ddp'"
)


class HiddenParameters:
    """Removes the other ranks' parameters from the groups of one optimizer, and restores them.

    A step may call the step of another optimizer that shares its groups (Lookahead). Then the
    parameters are hidden already, and the inner step restores them.
    """

    def __init__(self) -> None:
        self._groups: list[tuple[dict[str, Any], list[Tensor]]] = []
        self._versions: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._groups)

    def hide(self, optimizer: Optimizer, is_local: Iterable[bool]) -> None:
        """Remove the parameters whose flag in ``is_local`` is False."""
        mine = iter(is_local)
        self._groups = [(group, group["params"]) for group in optimizer.param_groups]
        for group, parameters in self._groups:
            group["params"] = [parameter for parameter in parameters if next(mine)]
        self._versions = self._versions_now()

    def show(self) -> None:
        """Restore all parameters."""
        for group, parameters in self._groups:
            group["params"] = parameters
        self._groups = []

    def show_after_error(self, optimizer: Optimizer) -> None:
        """Raise Unsupported if the failed step has already changed a parameter."""
        changed = self._versions != self._versions_now()
        self.show()
        if changed:
            raise Unsupported(HALF_DONE.format(type(optimizer).__name__))

    def _versions_now(self) -> list[int]:
        return [version(one) for group, _ in self._groups for one in group["params"]]


EVERY_RANK = -1
"""The owner of a tensor that each rank owns separately."""


class Owners:
    """Assigns each tensor to the least loaded rank, largest first, without moving earlier ones.

    >>> owners = Owners(2)
    >>> owners.add([10, 7, None, 6, 1])
    >>> owners.of
    [0, 1, -1, 1, 0]
    """

    def __init__(self, ranks: int) -> None:
        self.of: list[int] = []
        self._held = [0] * ranks

    def add(self, sizes: Sequence[int | None]) -> None:
        """Assign owners to further parameters of these sizes. All ranks call it with the same ones.

        The size is None for a tensor that each rank owns separately.
        """
        given = [EVERY_RANK] * len(sizes)
        shared = [(size, index) for index, size in enumerate(sizes) if size is not None]
        for size, index in sorted(shared, key=lambda one: -one[0]):
            given[index] = self._held.index(min(self._held))
            self._held[given[index]] += size
        self.of += given


def send(parameters: Sequence[Tensor], owners: Sequence[int], ranks: int) -> None:
    """Copy each parameter, of any shape, from the rank that owns it. All ranks call it.

    It needs one broadcast per rank, dtype and device.
    """
    held = list(zip(parameters, owners, strict=True))
    for rank in range(ranks):
        for kind in dict.fromkeys((p.dtype, p.device) for p, owner in held if owner == rank):
            _broadcast(
                [p for p, owner in held if owner == rank and (p.dtype, p.device) == kind], rank
            )


def _broadcast(tensors: list[Tensor], source: int) -> None:
    packed = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    dist.broadcast(packed, source)
    if dist.get_rank() != source:
        for tensor, part in zip(
            tensors, packed.split([one.numel() for one in tensors]), strict=True
        ):
            tensor.data.copy_(part.view_as(tensor))
