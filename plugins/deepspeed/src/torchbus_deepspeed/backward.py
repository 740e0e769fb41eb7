"""``backward`` under ZeRO: DeepSpeed reduces the gradients of its engines."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torchbus.plugin import BackwardCall, Unsupported, hookimpl

from torchbus_deepspeed import _compat
from torchbus_deepspeed.engine import ReducingEngine
from torchbus_deepspeed.engines import Engines
from torchbus_deepspeed.partitioned import is_empty
from torchbus_strategy.backward import engine as strategy_engine
from torchbus_strategy.backward import gradients, header
from torchbus_strategy.backward.header import SOME, WEIGHT
from torchbus_strategy.loss.gradients import isolated_gradients
from torchbus_strategy.parameters import rank0_values
from torchbus_strategy.parameters import trained as strategy_trained

CREATE_GRAPH = (
    "backward(create_graph=True) under strategy='{}': gradients are in parts that have no graph;"
    " use strategy='ddp'"
)
SOME_RANKS = (
    "only some ranks' losses reach {} ({}). Under stage 3 all ranks must use the same parameters in"
    " each step: use strategy='deepspeed_stage_2'"
)


class ShardedSync(gradients.GradientSync):
    """Implements ``backward``, with each backward's gradients separate from earlier ones."""

    def __init__(self, engines: Engines, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._engines = engines
        self._is_checked = False

    @hookimpl
    def run_backward(self, call: BackwardCall, engine: strategy_engine.BackwardFunction) -> None:
        self._check_batch()
        if call.create_graph:
            raise Unsupported(CREATE_GRAPH.format(self._engines.strategy))
        with isolated_gradients([holder for each in self._engines for holder in each.gradients]):
            super().run_backward(call, engine)
        self._engines.has_local = not call.sync

    def _check_batch(self) -> None:
        """Check batch sizes at the first batch whose size is known."""
        session = self._engines.session
        count, windows = session.share.count, session.options.get("accumulate_grad_batches", 1)
        if not self._is_checked and count and isinstance(windows, int):
            self._is_checked = True
            self._engines.config.check_batch(count, session.world_size, windows)


class ShardedReduction:
    """Hands gradients of engines to DeepSpeed, and averages others once the graph has run."""

    def __init__(
        self, engines: Engines, trained: Sequence[Tensor], buffers: rank0_values.Buffers
    ) -> None:
        self._engines = list(engines)
        self._scale = engines.loss_scale
        self._trained = list(trained)
        held = {id(one) for each in self._engines for one in each.parameters}
        self._others = Others([one for one in self._trained if id(one) not in held])
        holders = [holder for each in self._engines for holder in each.gradients]
        self.parameters = [*self._others.parameters, *holders]
        self.buffers = buffers
        self.header = header.make_header(self._trained[0], len(self._trained))
        self.header.parameter.register_hook(weak(self._begin))
        self._loss: Tensor | None = None
        self._local: set[int] = set()
        self._counts = True
        self._begun: list[tuple[ReducingEngine, set[int]]] = []
        self.has_reported = False

    def backward(
        self,
        engine: strategy_engine.BackwardFunction,
        roots: strategy_engine.Roots,
        slots: header.Slots,
        loss: Tensor | None,
        local: set[int],
        error: BaseException | None = None,
    ) -> None:
        """See ``torchbus.plugin.strategies.Reduction``."""
        self._loss, self._local, self._begun, self.has_reported = loss, local, [], False
        self._counts = bool(slots[WEIGHT] != 0.0)
        self.header.begin(slots)
        self._others.begin()
        with self._running(roots):
            try:
                strategy_engine.engine_run(engine, self.header.parameter, self.header.seed, roots)
                if error is not None:
                    raise error
            finally:
                error = None  # breaks a cycle, as its traceback refers to this frame

    @contextmanager
    def _running(self, roots: strategy_engine.Roots) -> Iterator[None]:
        """Context in which the graph runs. At its end, all ranks reduce the remaining gradients."""
        again, failed = self._counts_of(roots), True
        with ExitStack() as computing:
            for each in self._engines:
                computing.enter_context(each.computing())
            try:
                yield
                failed = False
            finally:
                self._loss = None
                self._finish()
                for each, counts in zip(self._engines, again, strict=True):
                    each.recover() if failed else _compat.put_backward_counts(counts)

    def _counts_of(self, roots: strategy_engine.Roots) -> list[list[tuple[Module, str, int]]]:
        """Return stage 3's counters if the graph is retained, so that it can run again."""
        retained = bool(roots.retain_graph)
        return [
            _compat.backward_counts(each.model) if retained and each.stage == 3 else []
            for each in self._engines
        ]

    def synchronised(self) -> set[int]:
        """See ``torchbus.plugin.strategies.Reduction``."""
        return {id(one) for one in self._trained}

    @torch.no_grad()
    def _begin(self, seed: Tensor) -> Tensor:
        """Exchange which parameters any rank will reach. This runs first in the graph."""
        announced = self._others.announced().union(*(each.announced() for each in self._engines))
        present = [id(one) in announced or id(one) in self._local for one in self._trained]
        reported = self.header.complete(self._loss, self._sample(), present)
        dist.all_reduce(reported)
        reported /= dist.get_world_size()
        self.has_reported = True
        reached = zip(map(id, self._trained), self.header.reached(), strict=True)
        by = {key: part for key, part in reached if part > SOME}
        self._others.wanted = set(by)
        for each in self._engines:
            wanted = {id(one) for one in each.parameters if id(one) in by}
            if wanted:
                refuse_some(each, wanted, by)
                self._begun.append((each, wanted))
                each.begin(wanted, announced, self._counts)
        return seed

    def _finish(self) -> None:
        scale = self._scale()
        for each, wanted in self._begun:
            each.finish(wanted, scale)
        self._others.finish(self._counts and self.has_reported)

    def _sample(self) -> Tensor:
        """Return a number that must be equal on all ranks.

        It is a checksum of forwards' writes, or an element of a parameter.
        """
        written = sum(each.written() for each in self._engines)
        if written:
            return torch.tensor(float(written))
        first = self._trained[0]
        if is_empty(first) or not first.numel():
            return torch.zeros(())
        return first.data[(0,) * first.dim()]


def refuse_some(engine: ReducingEngine, wanted: set[int], by: Mapping[int, float]) -> None:
    """Raise Unsupported, on all ranks, if the ranks reach different parameters at stage 3."""
    for name, parameter in engine.model.named_parameters() if engine.stage == 3 else ():
        part = by.get(id(parameter), 1.0)
        if id(parameter) in wanted and part < 1.0 - 1e-6:
            raise Unsupported(SOME_RANKS.format(name, f"{part:.0%} of them"))


def weak(method: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that calls a method by a weak reference.

    Python's garbage collector can't see the part of a reference cycle that is inside torch.
    """
    reference = weakref.WeakMethod(method)

    def call(seed: Tensor) -> Tensor:
        alive = reference()
        return seed if alive is None else alive(seed)

    return call


class ShardedReductions:
    """Makes a reduction for each set of parameters that require gradients, with its engines."""

    def __init__(self, engines: Engines, trained: strategy_trained.TrainedParameters) -> None:
        self._engines = engines
        self._trained = trained
        self._made: dict[tuple[int, ...], ShardedReduction] = {}
        self._of: list[ReducingEngine] = []

    def current(self) -> ShardedReduction:
        """See ``torchbus.plugin.strategies.Reductions``."""
        parameters = self._trained.requiring_gradients()
        self._engines.refuse_thawed(parameters)
        if self._of != list(self._engines):
            self._of = list(self._engines)
            self._made.clear()
        key = tuple(map(id, parameters))
        if key not in self._made:
            buffers = self._trained.buffers(self._trained.models(parameters))
            self._made[key] = ShardedReduction(self._engines, parameters, buffers)
        return self._made[key]

    def drop(self) -> None:
        """See ``torchbus.plugin.strategies.Reductions``."""
        self._made.clear()
        self._of = []


class Others:
    """Averages the gradients of parameters without an engine once the graph has run.

    ``wanted`` has the ids of the parameters that some rank reaches. It is equal on all ranks.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.wanted: set[int] = set()
        self._nodes = [_compat.gradient_node(one, stage=0) for one in self.parameters]
        self._before: list[Tensor | None] = []

    def announced(self) -> set[int]:
        """Return the ids of the parameters that the graph about to run will reach."""
        pairs = zip(self.parameters, self._nodes, strict=True)
        return {id(one) for one, node in pairs if _compat.will_execute(node)}

    def begin(self) -> None:
        """Set earlier gradients aside, so that ``p.grad`` holds only this backward's."""
        self.wanted = set()
        self._before = [one.grad for one in self.parameters]
        for one in self.parameters:
            one.grad = None

    @torch.no_grad()
    def finish(self, counts: bool) -> None:
        """Average the gradients, and add earlier ones. All ranks must call this.

        Unless ``counts``, this rank contributes zeros.
        """
        for one, old in zip(self.parameters, self._before, strict=True):
            if id(one) in self.wanted:
                one.grad = _mean(one, one.grad if counts else None)
            if old is not None:
                one.grad = old if one.grad is None else old.add_(one.grad)
        self._before = []


def _mean(parameter: Tensor, gradient: Tensor | None) -> Tensor:
    if gradient is None:
        gradient = torch.zeros_like(parameter)
    mean = gradient.to_dense() if gradient.is_sparse else gradient.contiguous()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()
