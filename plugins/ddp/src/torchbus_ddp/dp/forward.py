"""The outermost forward of each model computes this rank's rows, and returns those of all ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Context, Surround, hookimpl, warn

from torchbus_ddp._compat import parameters as parameters_of
from torchbus_ddp.dp.exchange import Joins, part
from torchbus_ddp.dp.outputs import OutputLayout
from torchbus_ddp.dp.rows import (
    Leaf,
    Rows,
    count_samples,
    count_sharers,
    has_rows,
    map_numbers,
    number_left_in,
    numbers_in,
    refuse_time_first,
    share_rows,
    unbatched_calls,
)
from torchbus_ddp.dp.team import RankGroup
from torchbus_strategy import random_streams
from torchbus_strategy.script_generators import STRIDE, ScriptGenerators, reached

T = TypeVar("T")

CONSTANT = (
    "strategy='dp': {}.forward is given the same tensor of shape {} in each call, with the"
    " batch's number of rows in dim {}, and so it is divided with the batch. That is exact if it"
    " has a row for each sample. If each sample needs all rows (prototypes, class embeddings),"
    " make it a buffer of the model"
)
LEFT = "Return the rows that it is computed from, and compute it in the loop"
NUMBER = (
    "If it is a mean (a sum) over samples, pass loss_reduction='mean' ('sum'), and it is divided"
)
FAILS = "fails for {} of the {} rows that its inputs have in dim {} ({})"


class DividedForward:
    """Divides the forwards of the models that it finds.

    For each form of a model's inputs, every rank computes the first call whole, and also the calls
    up to the next backward. The first call shows how the outputs depend on the batch.
    ``reduction`` says whether numbers that a forward returns are a "mean" or a "sum" over samples;
    None means that this is unknown.
    """

    def __init__(
        self, session: Context, team: RankGroup, dim: int | None, reduction: str | None
    ) -> None:
        assert session.job is not None
        self._session, self._job = session, session.job
        self._team = team
        self._dim = dim or 0
        self._dim_is_said = dim is not None
        self._reduction = reduction
        self._stream = DerivedStream(session.rank)
        self._surround = Surround(self._around, traced=False)
        self._layouts: weakref.WeakKeyDictionary[Module, dict[Hashable, OutputLayout]] = (
            weakref.WeakKeyDictionary()
        )
        self._joins = Joins(team)
        self._inside = False
        self._warned = self._has_asked = False
        session.on_close.callback(self._surround.close)

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is None or self._session.captures(optimizer):
            for model in objects.models_of(parameters):
                self._add(model)

    @hookimpl
    def model_found(self, model: Module) -> None:
        if self._session.captures(model) and any(True for _ in model.parameters()):
            self._add(model)

    def _add(self, model: Module) -> None:
        if model not in self._layouts and not isinstance(model, DistributedDataParallel):
            self._layouts[model] = {}
            self._surround.add(model)

    def _around(
        self,
        model: Module,
        forward: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> T:
        total = 0 if self._inside else count_samples((args, kwargs), self._dim)
        if count_sharers(total, self._team.size) == 1 or _borrowed(model):
            return forward(*args, **kwargs)
        self._inside = True
        try:
            return self._outermost(model, forward, args, kwargs, total)
        finally:
            self._inside = False

    def _is_batched(self, leaf: object, total: int) -> TypeGuard[Tensor]:
        """Whether ``leaf`` is treated as a batch, because it has the batch's number of rows.

        This may be a coincidence. So a parameter is not treated as a batch, and a warning asks
        about a tensor that is the same in each call.
        """
        return (
            has_rows(leaf, self._dim)
            and leaf.shape[self._dim] == total
            and not isinstance(leaf, nn.Parameter)
        )

    def _batched(self, args: object, kwargs: object, total: int) -> list[Tensor]:
        return [leaf for leaf in numbers_in((args, kwargs)) if self._is_batched(leaf, total)]

    def _ask_of_constant(self, model: Module, layout: OutputLayout, given: list[Tensor]) -> None:
        """Warn once about tensors that the loop passes again while others are new."""
        before = [reference() for reference in layout.given]
        again = [any(one is leaf for one in before) for leaf in given]
        if any(again) and not all(again) and self._session.is_main and not self._has_asked:
            self._has_asked = True
            shape = tuple(given[again.index(True)].shape)
            warn(CONSTANT.format(type(model).__name__, shape, self._dim))

    def _outermost(
        self,
        model: Module,
        forward: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        total: int,
    ) -> T:
        known, form = self._layouts[model], _form(model, args, kwargs)
        layout = known.get(form)
        if layout is None:
            with unbatched_calls(model) as unbatched:
                outputs = forward(*args, **kwargs)
            known[form] = self._learned(model, outputs, total, unbatched)
            known[form].given = [weakref.ref(leaf) for leaf in self._batched(args, kwargs, total)]
            return outputs
        if layout.whole_because or _only_updates_buffers(model) or self._may_be_again(layout):
            return forward(*args, **kwargs)
        if layout.is_new:
            self._ask_of_constant(model, layout, self._batched(args, kwargs, total))
        rows = share_rows(total, self._team.size, self._team.rank)

        def take(leaf: Leaf) -> Leaf:
            if self._is_batched(leaf, total):
                return part(leaf, rows, self._dim, self._team)
            return leaf

        local_args, local_kwargs = map_numbers((tuple(args), kwargs), take)
        compute = partial(forward, *local_args, **local_kwargs)
        with self._stream.drawn_from(model):
            outputs = self._computed(model, layout, rows, compute)
        if layout.is_new and layout.has_several and not layout.whole_because:
            self._find_orders(model, layout, rows, partial(forward, *args, **kwargs), compute)
        if layout.whole_because:
            return forward(*args, **kwargs)
        self._joins.used_by(_tensors(outputs))
        common = layout.join(outputs, rows, self._team, self._reduction)
        self._joins.add(_tensors(common))
        return common

    def _learned(
        self, model: Module, outputs: object, total: int, unbatched: Sequence[str]
    ) -> OutputLayout:
        """Return what the first call of a form shows."""
        layout = OutputLayout(type(model).__name__, outputs, total, self._dim)
        layout.learned_before = self._job.backwards + 1
        if unbatched:
            layout.whole_because = f"takes one sequence without a batch ({unbatched[0]})"
        elif layout.has_numbers and self._reduction is None:
            layout.whole_because = "returns a number for the whole batch"
            self._warn(model, layout, NUMBER)
        elif name := number_left_in(model, total):
            layout.whole_because = f"leaves a number for the whole batch in an attribute ({name})"
            self._warn(model, layout, LEFT)
        if not self._dim_is_said and not unbatched:
            refuse_time_first(model)
        return layout

    def _computed(
        self, model: Module, layout: OutputLayout, rows: Rows, compute: Callable[[], Any]
    ) -> Any:
        """Compute this rank's rows.

        In the first such call, the ranks find out whether it fails on any of them. Then no call of
        this form is divided, and the buffers are as before.
        """
        if not layout.is_new:
            return compute()
        restore = _buffers_of(model)
        outputs, error = None, ""
        try:
            outputs = compute()
        except (RuntimeError, IndexError, ValueError) as raised:
            error = str(raised)
        if not any(failed for (failed,) in self._team.gather([bool(error)])):
            return outputs
        restore()
        layout.whole_because = FAILS.format(rows.computed, rows.total, self._dim, error)
        if torch.is_grad_enabled():
            self._warn(model, layout, "If the batch is in another dimension, pass batch_dim=")
        return None

    def _find_orders(
        self,
        model: Module,
        layout: OutputLayout,
        rows: Rows,
        whole: Callable[[], object],
        compute: Callable[[], object],
    ) -> None:
        """Find the orders of outputs with several rows for each sample, without dropout."""
        found = layout.unknown_orders
        with _evaluated(model), suppress(RuntimeError, IndexError, ValueError):
            found = layout.orders(whole(), compute(), rows)
        layout.agree_on_orders(self._team.gather(found))
        if layout.whole_because and torch.is_grad_enabled():
            self._warn(model, layout, "Return them as a tensor with the batch in one dimension")

    def _may_be_again(self, layout: OutputLayout) -> bool:
        """Whether a backward may compute the first call again (``torch.utils.checkpoint``)."""
        return torch.is_grad_enabled() and layout.learned_before > self._job.backwards

    def _warn(self, model: Module, layout: OutputLayout, remedy: str) -> None:
        if self._session.is_main and not self._warned and _is_large(model):
            self._warned = True
            warn(f"{_whole_phrases(model, layout)}. {remedy}")

    @hookimpl(tryfirst=True)
    def describe(self, thing: object) -> str | None:
        if not isinstance(thing, Module) or thing not in self._layouts:
            return None
        layouts = list(self._layouts[thing].values())
        if whole := next((layout for layout in layouts if layout.whole_because), None):
            return _whole_phrases(thing, whole)
        if not layouts:
            return "its forward was not called yet; other methods are computed whole by every rank"
        return (
            f"each outermost forward is divided over {self._team.size} ranks along dim {self._dim}"
        )


def _buffers_of(model: Module) -> Callable[[], None]:
    """Return a function that gives the model's buffers their present values again."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]

    @torch.no_grad()
    def restore() -> None:
        for buffer, value in before:
            buffer.copy_(value)

    return restore


@contextmanager
def _evaluated(model: Module) -> Iterator[None]:
    """Put the model into eval mode without gradients, and then everything as it was.

    Sets the modes directly, because ``model.eval()`` is an event that other plugins act on.
    """
    modes = [(module, module.training) for module in model.modules()]
    restore, stream = _buffers_of(model), random_streams.read()
    for module, _ in modes:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        restore()
        random_streams.write(stream)
        for module, training in modes:
            module.training = training


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in numbers_in(value) if isinstance(leaf, Tensor)]


def _form(model: Module, args: tuple[object, ...], kwargs: dict[str, object]) -> Hashable:
    """Return what a call shows of everything that decides about the structure of its outputs."""
    flags = tuple(
        (key, value) for key, value in kwargs.items() if isinstance(value, bool | str | None)
    )
    leaves = tuple(
        leaf.dim() if isinstance(leaf, Tensor) else -1 for leaf in numbers_in((args, kwargs))
    )
    return model.training, len(args), tuple(kwargs), flags, leaves


def _borrowed(model: Module) -> bool:
    """Whether ``functional_call`` has replaced the parameters by other tensors.

    All ranks have the same graph of these tensors.
    """
    return any(
        not isinstance(parameter, nn.Parameter)
        for module in model.modules()
        for parameter in parameters_of(module).values()
        if parameter is not None
    )


def _only_updates_buffers(model: Module) -> bool:
    """Whether the call updates buffers (BatchNorm's) that no backward will make equal again."""
    return model.training and not torch.is_grad_enabled() and any(True for _ in model.buffers())


def _is_large(model: Module) -> bool:
    """Whether a model is worth a warning. A loss with a parameter or two is not."""
    return any(parameter.dim() > 1 for parameter in model.parameters())


def _whole_phrases(model: Module, layout: OutputLayout) -> str:
    return (
        f"{type(model).__name__}.forward {layout.whole_because}, so every rank computes all of it,"
        " and nothing is gained"
    )


class DerivedStream:
    """A random stream that is seeded from the common one, without advancing the latter.

    Generators that a model holds get such streams too.
    """

    def __init__(self, rank: int) -> None:
        common = random_streams.read()
        random_streams.seed(int(torch.randint(2**62, (1,))) + rank)
        self._state = random_streams.read()
        random_streams.write(common)
        self._rank = rank
        self._script = ScriptGenerators()
        self._known: weakref.WeakSet[Module] = weakref.WeakSet()

    @contextmanager
    def drawn_from(self, model: Module) -> Iterator[None]:
        if model not in self._known:
            self._known.add(model)
            self._script.begin(reached([model]), STRIDE * self._rank)
        common = random_streams.read()
        random_streams.write(self._state)
        self._script.use(True)
        try:
            yield
        finally:
            self._script.use(False)
            self._state = random_streams.read()
            random_streams.write(common)
