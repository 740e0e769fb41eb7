"""Intercepts the loop's calls of layers: the stages compute, and all ranks get the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module
from torchbus.plugin import Context, Surround, Unsupported

from torchbus_pipeline import passes
from torchbus_pipeline.cut import Between, Cut, after
from torchbus_pipeline.divergence import CheckedBarrier, PipelineRanks
from torchbus_pipeline.inputs import (
    NO_EXTRA,
    ChainInputs,
    Extra,
    check,
    given_by_loop,
    refuse_reading,
    rows_in,
)
from torchbus_pipeline.later import Later, number, output
from torchbus_pipeline.later_backward import Deferred
from torchbus_pipeline.options import GPIPE, PipelineOptions
from torchbus_pipeline.passes import ForwardPass, Link, MicroBatchRun, PassGenerators


@dataclass
class CallSequence:
    """A sequence of layer calls in progress. ``token`` is what the latest layer returned."""

    x: Any
    extras: list[Extra]
    token: Between | None = None


NO_ROW = CallSequence(None, [])


class LayerCalls:
    """Wraps the forwards of cut models' layers, and of the nn.Sequential that holds them."""

    def __init__(
        self,
        session: Context,
        team: PipelineRanks,
        barrier: CheckedBarrier,
        options: PipelineOptions,
    ) -> None:
        self._session, self._team, self._barrier = session, team, barrier
        self._options = options
        self._forms: dict[tuple[object, ...], tuple[torch.Size, torch.dtype]] = {}
        self._stream = PassGenerators(session)
        self._surround = Surround(self._around, traced=False)
        session.on_close.callback(self._surround.close)
        self._holders: dict[int, Cut] = {}
        self._layers: dict[int, Cut] = {}
        self._rows: dict[int, CallSequence] = {}
        self._computes = False
        self._by_rows: dict[int, dict[int, bool]] = {}
        self._anchor = torch.zeros((), device=session.device, requires_grad=True)
        self._driven: bool | None = None
        self._runs: list[MicroBatchRun] = []

    def add(self, cut: Cut) -> None:
        """Wrap a model's layers. All ranks must call this."""
        self._holders[id(cut.found.holder)] = cut
        if isinstance(cut.found.holder, nn.Sequential):
            self._surround.add(cut.found.holder)
        for layer in cut.layers:
            self._layers[id(layer)] = cut
            self._surround.add(layer)

    def _around(
        self,
        module: Module,
        forward: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        if self._computes:
            return forward(*args, **kwargs)
        if id(module) in self._holders and len(args) == 1 and not kwargs:
            cut = self._holders[id(module)]
            return self._whole(cut, CallSequence(args[0], [NO_EXTRA] * len(cut.layers)))
        if id(module) in self._layers:
            return self._layer(self._layers[id(module)], module, args, kwargs)
        return forward(*args, **kwargs)

    # Layer by layer ------------------------------------------------------------------------------

    def _layer(
        self, cut: Cut, layer: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Record a layer's arguments. The call of the last layer computes all layers."""
        begins = layer is cut.layers[0] and not (args and isinstance(args[0], Between))
        row = (
            CallSequence(args[0] if args else None, [])
            if begins
            else self._rows.get(id(cut), NO_ROW)
        )
        number = len(row.extras)
        if layer is not cut.layers[number] or not (begins or (args and args[0] is row.token)):
            self._refuse(cut, layer)
        if not isinstance(row.x, Tensor):
            check(cut.name, row.x, [])
        row.extras.append((args[1:], kwargs))
        if len(row.extras) < len(cut.layers):
            self._rows[id(cut)] = row
            row.token = after(f"{cut.found.names()[number]} of {cut.name}", row.x)
            return row.token
        self._rows.pop(id(cut), None)
        return self._whole(cut, row)

    def _refuse(self, cut: Cut, layer: Module) -> None:
        name = cut.found.names()[cut.layers.index(layer)]
        raise Unsupported(
            f"{name} of {cut.name} was called separately, or with something other than the"
            " previous layer's output: strategy='pipeline' computes all layers of the list in"
            " sequence, each from the output of the previous one. Name another list with blocks=,"
            " or use strategy='ddp'"
        )

    # All of them ---------------------------------------------------------------------------------

    def _whole(self, cut: Cut, row: CallSequence) -> Tensor:
        given = number(row.x) if isinstance(row.x, Later) else row.x
        x = check(cut.name, given, row.extras)
        if list(cut.found.holder) != cut.layers:
            raise Unsupported(
                f"the layers of {cut.name} are not those that were divided among the ranks: add and"
                " remove layers before you make the optimizer"
            )
        cut.forwards += 1
        trains = torch.is_grad_enabled() and self._is_trained(cut, x)
        kind = "training" if trains else "without gradients"
        self._barrier.sync_in_pipeline(f"forward {cut.forwards} of {cut.name} ({kind})")
        by_rows = self._rows_of(cut, x, row.extras)
        inputs = given_by_loop(x, row.extras, by_rows)
        for one in {id(one): one for some in inputs.originals for one in some}.values():
            if type(one) in cut.written:
                refuse_reading(one, cut.name)
        if trains and self._may_wait(cut):
            return self._later(cut, inputs)
        return self._compute(self._pass(cut, inputs, trains))

    def _compute(self, one: ForwardPass) -> Tensor:
        """Run all forwards, and return the output. All ranks of the pipeline must call this."""
        before, self._computes = self._computes, True
        try:
            whole = passes.forward(one)
        finally:
            self._computes = before
        if whole is None:
            self._barrier.raise_common(one.run.error)
            raise AssertionError("some rank has had an error")
        if not one.run.trains:
            return whole
        made: Tensor = passes.Chain.apply(one, whole, self._anchor, one.run.inputs.x)  # type: ignore[no-untyped-call]
        return made

    def _may_wait(self, cut: Cut) -> bool:
        """Whether the output may be computed in backward.

        The schedule must allow it, and the loss must be a mean or a sum over samples, or unknown.
        """
        device = self._session.device.type
        return (
            self._options.schedule != GPIPE
            and cut.loss_kind != ""
            and not torch.is_autocast_enabled(device)
        )

    def _later(self, cut: Cut, inputs: ChainInputs) -> Tensor:
        """Return an output that is computed in backward.

        It is computed now if its shape, or the kind of the loss, is not known yet.
        """
        x = inputs.x
        source = Deferred(
            lambda: self._pass(cut, inputs, True), self._compute, self._barrier.sync_in_pipeline
        )
        form = (id(cut), x.shape[1:], x.dtype)
        if form not in self._forms or cut.loss_kind is None:
            made = source.numbers()
            self._forms[form] = made.shape[1:], made.dtype
        shape, dtype = self._forms[form]
        return output(source, (len(x), *shape), dtype)

    def _is_trained(self, cut: Cut, x: Tensor) -> bool:
        return x.requires_grad or any(map(cut.needs_gradients, range(cut.stages)))

    def _rows_of(self, cut: Cut, x: Tensor, extras: list[Extra]) -> frozenset[int]:
        """Return the places of the extra tensors that have a row for each sample."""
        found = rows_in(x, extras)
        known = self._by_rows.setdefault(id(cut), {})
        known.update({place: rows for place, rows in found.items() if place not in known})
        if any(known[place] and not rows for place, rows in found.items()):
            raise Unsupported(
                f"a layer of {cut.name} gets a tensor besides its input that has a row for each"
                " sample in one batch, and not in another, so whether to cut it is ambiguous for"
                " strategy='pipeline': change the batch size, or use strategy='ddp'"
            )
        return frozenset(place for place, rows in known.items() if rows)

    def _pass(self, cut: Cut, inputs: ChainInputs, trains: bool) -> ForwardPass:
        link = Link(self._team, self._session.device)
        count = min(self._options.microbatches, len(inputs.x))
        run = MicroBatchRun(cut, link, inputs, count, trains)
        return ForwardPass(run, link, self._stream, self._begin_backward)

    # Backward ------------------------------------------------------------------------------------

    @contextmanager
    def driven(self, retain: bool) -> Iterator[list[MicroBatchRun]]:
        """Context of a backward of the loop. Yields a list of the passes that the backward uses."""
        self._driven, self._runs, self._computes = retain, [], True
        try:
            yield self._runs
        finally:
            self._driven, self._computes = None, False

    def _begin_backward(self, run: MicroBatchRun) -> bool:
        if self._driven is None:
            raise Unsupported(
                f"torch.autograd.grad through {run.cut.name} under strategy='pipeline': its layers"
                " are on other ranks, which know only of backward(); use strategy='ddp' or 'dp'"
            )
        self._runs.append(run)
        return self._driven
