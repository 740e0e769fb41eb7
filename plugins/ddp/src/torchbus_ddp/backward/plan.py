"""Plans of a backward: which of DDP's reducers average which parameters."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Module
from torchbus.plugin import Context, Unsupported

from torchbus_ddp._compat import parameters as parameters_of
from torchbus_ddp._compat import sparse_values, version, will_execute_node
from torchbus_ddp.backward.reducer import Reducer, ReducerOptions, make_reducer
from torchbus_strategy.backward import engine as strategy_engine
from torchbus_strategy.backward import header
from torchbus_strategy.compat import gradient, requires_grad
from torchbus_strategy.loss.gradients import NONE
from torchbus_strategy.parameters import rank0_values
from torchbus_strategy.parameters import trained as strategy_trained


class Plans:
    """Makes plans on first use, and reuses them until the parameters change."""

    def __init__(
        self, session: Context, trained: strategy_trained.TrainedParameters, options: ReducerOptions
    ) -> None:
        self._session = session
        self._trained = trained
        self._options = options
        self._made: dict[tuple[bool, ...], SyncPlan] = {}

    def current(self) -> SyncPlan:
        """Return the plan for the parameters that require gradients now. All ranks call it."""
        self._trained.look_for_replaced()
        key = tuple(map(requires_grad, self._trained.parameters))
        plan = self._made.get(key)
        return self._make(key) if plan is None else plan

    def _make(self, key: tuple[bool, ...]) -> SyncPlan:
        parameters = self._trained.requiring_gradients()
        models = self._trained.models(parameters)
        plan = self._made[key] = SyncPlan(
            self._session,
            parameters,
            self._trained.buffers(models),
            self._trained.holders(parameters),
            _sparse(models),
            self._options,
        )
        return plan

    def drop(self) -> None:
        for plan in self._made.values():
            plan.close()
        self._made.clear()


def _sparse(models: list[Module]) -> set[int]:
    """Return the ids of parameters that belong to an Embedding with sparse gradients."""
    modules = [
        module
        for model in models
        for module in model.modules()
        if getattr(module, "sparse", False) is True
    ]
    return {id(parameters_of(module).get("weight")) for module in modules}


Before = tuple[Tensor | None, int]
Snapshot = list[Before]
NOTHING: Before = (None, 0)


class SyncPlan:
    """Synchronises one set of parameters, all of which require gradients.

    ``header`` holds the ranks' metadata of the last backward. ``holders`` says which
    optimizers hold each parameter. ``sparse`` holds ids of parameters with sparse gradients.
    """

    def __init__(
        self,
        session: Context,
        parameters: Sequence[Tensor],
        buffers: rank0_values.Buffers,
        holders: Sequence[Hashable],
        sparse: set[int],
        options: ReducerOptions,
    ) -> None:
        self.parameters = list(parameters)
        self.buffers = buffers
        self.header = header.make_header(self.parameters[0], len(self.parameters))
        with torch.enable_grad():
            self._nodes = [_gradient_node(parameter) for parameter in self.parameters]
        self._sparse = sparse
        self._session = session
        self._options = options
        everything = tuple(range(len(self.parameters)))
        self._reducers: dict[tuple[int, ...], Reducer] = {everything: self._make(everything)}
        self._all = self._chosen = self._reducers[everything]
        self._wanted: tuple[int, ...] = everything
        self._groups = Groups(self.parameters, holders)
        self._nothing: Snapshot = [NOTHING] * len(self.parameters)
        self._uses = 0
        self._loss: Tensor | None = None
        self._absent: list[int] = []
        self._local: set[int] = set()
        self._started = False
        self._hook = self.header.parameter.register_hook(self._begin)

    def close(self) -> None:
        """Release the reducers, which form a reference cycle with the hook.

        Python's garbage collector does not see torch's side of that cycle.
        """
        self._hook.remove()
        self._reducers.clear()
        del self._all, self._chosen, self._session

    def backward(
        self,
        engine: strategy_engine.BackwardFunction,
        roots: strategy_engine.Roots,
        slots: header.Slots,
        loss: Tensor | None,
        local: set[int],
        error: BaseException | None = None,
    ) -> None:
        """Synchronise a backward: see ``Reduction.backward``. All ranks call it.

        After an error, zeros replace the gradients that were not made, so that the reducer works in
        the next call.
        """
        self._loss, self._local = loss, local
        self._started, self._absent = False, []
        self.header.begin(slots)
        before = self.snapshot()
        try:
            strategy_engine.engine_run(engine, self.header.parameter, self.header.seed, roots)
            if error is not None:
                raise error
        except BaseException:
            if self._started:
                self._complete(engine, before, self._chosen.members)
                self._chosen.put_in_order()
            raise
        finally:
            # a cycle of the error, its traceback and this frame would keep the model alive
            self._loss = error = None
        self._finish(engine, before)

    def _finish(self, engine: strategy_engine.BackwardFunction, before: Snapshot) -> None:
        if self._absent:
            self._resolve_absent(engine, before)
        self._chosen.put_in_order()
        self._uses += 1
        if self._wanted not in self._reducers:
            self._reducers[self._wanted] = self._make(self._wanted)

    @property
    def has_reported(self) -> bool:
        """Whether the ranks exchanged metadata in the last backward.

        They do as soon as its graph has begun, even if it fails later.
        """
        return self._started

    def synchronised(self) -> set[int]:
        """Return the ids of the parameters that the last backward has synchronised."""
        return {id(self.parameters[index]) for index in self._chosen.members}

    def snapshot(self) -> Snapshot:
        """Return each gradient and its version, with which ``_touched`` compares later ones."""
        gradients = list(map(gradient, self.parameters))
        if set(map(type, gradients)) == NONE:
            return self._nothing
        return [NOTHING if one is None else (one, version(one)) for one in gradients]

    def _begin(self, _: Tensor) -> Tensor:
        """Run first in the graph, before any gradient is accumulated, in no_grad mode.

        Only here does torch know which parameters the backward will reach.
        """
        present = list(map(will_execute_node, self._nodes))
        if not all(present):
            self._absent = [index for index, runs in enumerate(present) if not runs]
        if self._local:
            present = [
                runs or (id(parameter) in self._local and parameter.grad is not None)
                for runs, parameter in zip(present, self.parameters, strict=True)
            ]
        self._chosen = self._all
        if self._groups.useful and self._uses >= LEARNING_BACKWARDS:
            self._choose(present)
        self._chosen.prepare()
        self._started = True
        sampled = header.first_number(self.parameters[self._uses % len(self.parameters)])
        return self.header.fill(self._loss, sampled, present)

    def _make(self, members: tuple[int, ...]) -> Reducer:
        return make_reducer(
            self._session,
            self.parameters,
            members,
            self.header.parameter,
            self._sparse,
            self._options,
        )

    def _choose(self, present: Sequence[bool]) -> None:
        """Choose the reducer for the parameters that any rank's backward reaches.

        If it does not exist yet, it is made after this backward, which uses the reducer for all
        parameters.
        """
        self._wanted = self._groups.agree(present)
        self._chosen = self._reducers.get(self._wanted, self._all)

    def _resolve_absent(self, engine: strategy_engine.BackwardFunction, before: Snapshot) -> None:
        """Contribute zeros for the parameters that this rank's graph did not reach.

        Reentrant checkpointing may have reached some of them unannounced.
        """
        if any(_touched(self.parameters[index], before[index]) for index in self._absent):
            self._groups.hide()
            if any(
                _touched(self.parameters[index], before[index])
                for index in set(self._absent) - self._chosen.members
            ):
                raise Unsupported(
                    "reentrant checkpointing reached parameters that this backward left out: use"
                    " checkpoint(..., use_reentrant=False)"
                )
        inside = [index for index in self._absent if index in self._chosen.members]
        self._complete(engine, before, inside)
        self._restore_none(before, inside)

    def _complete(
        self, engine: strategy_engine.BackwardFunction, before: Snapshot, candidates: Iterable[int]
    ) -> None:
        """Contribute zeros for those candidates that did not get a gradient."""
        missing = [
            index
            for index in sorted(candidates)
            if not _touched(self.parameters[index], before[index])
        ]
        if missing:
            engine(
                [self.parameters[index] for index in missing],
                [self._zero(index) for index in missing],
            )

    def _zero(self, index: int) -> Tensor:
        parameter = self.parameters[index]
        if id(parameter) in self._sparse:
            return torch.sparse_coo_tensor(
                torch.empty((1, 0), dtype=torch.long),
                torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype),
                parameter.shape,
                device=parameter.device,
                check_invariants=False,
            )
        return torch.zeros_like(parameter)

    def _restore_none(self, before: Snapshot, absent: Iterable[int]) -> None:
        """Set a gradient to None again if it was None before and no rank has made it."""
        unreached = self.header.unreached()
        for index in absent:
            made = self.parameters[index].grad
            if (
                before[index][0] is None
                and unreached[index]
                and made is not None
                and not _any(made)
            ):
                self.parameters[index].grad = None


def _touched(parameter: Tensor, before: Before) -> bool:
    made = parameter.grad
    return made is not None and (made is not before[0] or version(made) != before[1])


def _any(made: Tensor) -> bool:
    return bool((sparse_values(made) if made.is_sparse else made).any())


def _gradient_node(parameter: Tensor) -> Node:
    """Return the node that accumulates the parameter's gradient."""
    view = parameter.expand_as(parameter).grad_fn
    assert view is not None
    node = view.next_functions[0][0]
    assert node is not None
    return node


WORTH_BYTES = 2**20
LEARNING_BACKWARDS = 2


class Groups:
    """Parameters, grouped by the optimizers that hold them.

    In a GAN, for example, the discriminator's backward does not reach the generator. ``agree``
    costs a small collective before the gradients, so it is ``useful`` only if some group is large.
    """

    def __init__(self, parameters: Sequence[Tensor], holders: Sequence[Hashable]) -> None:
        kinds = list(dict.fromkeys(holders))
        self._members = [
            [index for index, holder in enumerate(holders) if holder == kind] for kind in kinds
        ]
        bytes_of = [sum(parameters[index].nbytes for index in members) for members in self._members]
        self.useful = len(kinds) > 1 and max(bytes_of) >= WORTH_BYTES
        self._opaque = False
        self._device = parameters[0].device

    def hide(self) -> None:
        """Synchronise everything from now on.

        Some gradients could not be foreseen, because reentrant checkpointing made them.
        """
        self._opaque = True

    def agree(self, present: Sequence[bool]) -> tuple[int, ...]:
        """Return the parameters of all groups that some rank's backward reaches.

        All ranks call it.
        """
        reached = [any(present[index] for index in members) for members in self._members]
        reported = torch.tensor([*reached, self._opaque], dtype=torch.uint8, device=self._device)
        dist.all_reduce(reported, dist.ReduceOp.MAX)
        *union, opaque = reported.tolist()
        return tuple(
            sorted(
                index
                for members, used in zip(self._members, union, strict=True)
                if used or opaque
                for index in members
            )
        )
