"""The plugin that stops at NaN: its option, what it checks, and what the ranks exchange."""

from __future__ import annotations

import os
import weakref
from collections import deque
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import (
    BackwardCall,
    Context,
    LoaderIterator,
    Origin,
    SharedStore,
    TorchbusError,
    expect,
    hookimpl,
)

from torchbus_debug.calls import CallHistory, LayerNotes, OutermostCall, is_finite
from torchbus_strategy.collectives import extremes
from torchbus_strategy.compat import local_part
from torchbus_strategy.loss.intermediate_values import unscaled

FOLDER = "torchbus-nan"
FOUND = "debug/nan"
OTHERS_S = 20.0
"""How long a rank that finds nothing waits for the word of one that does."""
BATCHES_AT_MOST = 4


class NonFinite(TorchbusError, ArithmeticError):
    """A loss or a gradient is NaN or infinite, and ``stop_on_nan=True``."""


class StopOnNan:
    """Ends the job on a NaN or infinite loss or gradient, before it reaches a parameter.

    The error names the rank, the batch, and the first layer whose output or gradient is not finite.
    That rank writes the batch into the folder ``torchbus-nan``.

    Args:
        stop_on_nan: end the job when a loss or a gradient is NaN or infinite. It waits for the
            device after each backward and before each step.
    """

    owns = ("stop on NaN",)
    tried_with = ({"stop_on_nan": True},)

    def __init__(self, stop_on_nan: bool = True) -> None:
        expect("stop_on_nan", stop_on_nan, bool, "True or False")
        self._active = stop_on_nan

    @hookimpl
    def session_start(self, session: Context) -> None:
        if self._active:
            session.bus.register(NanWatch(session), "debug.nan")

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        lines = ["the job ends when a loss or a gradient is not finite"] if self._active else []
        return {"NaN": lines} if lines else {}


class NanWatch:
    """Checks each loss after its backward, and gradients before the step that uses them."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._steps = session.steps.follow()
        session.batches.follow()
        self._calls = CallHistory()
        session.on_close.callback(self._calls.close)
        self._layers = LayerNotes()
        session.on_close.callback(self._layers.close)
        self._given: weakref.WeakKeyDictionary[Origin, deque[tuple[int, object]]] = (
            weakref.WeakKeyDictionary()
        )
        self._loss: Tensor | None = None
        self._is_finite_here: Tensor | None = None

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is not None and self._session.captures(optimizer):
            for model in objects.models_of(parameters):
                self._calls.add(model)
                if not calls_models_alone(self._session):
                    self._layers.add(model)

    @hookimpl(trylast=True)
    def batch_ready(self, batch: object, iterator: LoaderIterator) -> None:
        given = self._given.setdefault(iterator.origin, deque(maxlen=BATCHES_AT_MOST))
        given.append((iterator.num_yielded, batch))

    @hookimpl
    def before_backward(self, call: BackwardCall) -> None:
        self._loss = None if call.loss is None else unscaled(call.loss)
        self._is_finite_here = (
            None if self._loss is None else torch.isfinite(self._loss.detach()).all()
        )
        for one in self._calls.made:
            if one.batches is None:
                one.batches = self._current_batches()

    @hookimpl
    def after_backward(self) -> None:
        loss, self._loss = self._loss, None
        if loss is not None and not is_finite(loss):
            self._stop(f"the loss is {loss.detach().flatten()[0].item()}", self._is_finite_here)

    @hookimpl(tryfirst=True)
    def gradients_ready(self, optimizer: Optimizer) -> None:
        if getattr(optimizer, "found_inf", None) is None and not self._are_finite(optimizer):
            self._stop("a gradient is not finite", None)

    def _are_finite(self, optimizer: Optimizer) -> bool:
        """Whether the gradients are finite, with those parts that only other ranks have."""
        finite = have_finite_gradients(optimizer)
        if calls_models_alone(self._session):
            return finite
        return bool(extremes([float(finite)], self._session.world_size)[0][0])

    @hookimpl
    def after_optimizer_step(self) -> None:
        self._calls.made.clear()
        self._layers.clear()

    # The end -------------------------------------------------------------------------------------

    def _stop(self, what: str, own: Tensor | None) -> None:
        """End the job. ``own``: whether this rank's own loss is finite; None: there is none."""
        call, where = self._look(in_backward=own is None)
        concerned = bool(where) or (own is not None and not own)
        found = self._session.rank if concerned else None
        if self._session.world_size > 1:
            found = self._first_rank(concerned, located=bool(where))
        text = (
            self._report(what, call, where)
            if found == self._session.rank
            else self._reported(what, found)
        )
        error = NonFinite(f"stop_on_nan: {text}")
        self._session.stop_for(error)
        raise error

    def _look(self, *, in_backward: bool) -> tuple[OutermostCall | None, str]:
        """Return the call that went wrong, and in words its first part that is not finite."""
        alone = calls_models_alone(self._session)
        try:
            call, where = self._calls.look(in_backward=in_backward, repeat=alone) or (None, "")
            return call, where or self._layers.first(in_backward=in_backward)
        except Exception:  # the search only helps: the error stays that of the loss or gradient
            return None, ""

    def _first_rank(self, concerned: bool, *, located: bool) -> int | None:
        """Return the first rank that knows the place, or else whose loss is not finite."""
        store, size = self._session.world.shared, self._session.world_size
        store.set(f"{FOUND}/{self._session.rank}", str(concerned + 2 * located))
        words = self._wait_for([f"{FOUND}/{rank}" for rank in range(size)])
        if words is None:  # the others have not stopped
            return self._session.rank if concerned else None
        ranked = [(-int(word), rank) for rank, word in enumerate(words) if int(word)]
        return min(ranked)[1] if ranked else None

    def _wait_for(self, keys: list[str]) -> list[bytes] | None:
        """Return what ranks have written, or None after a while."""
        job, found = self._session.job, list[bytes]()

        def are_there(store: SharedStore) -> bool:
            found[:] = store.read_all(keys) or ()
            return bool(found)

        assert job is not None
        return found if job.wait_until(are_there, OTHERS_S) else None

    def _report(self, what: str, call: OutermostCall | None, where: str) -> str:
        batches = self._current_batches() if call is None or call.batches is None else call.batches
        names = " and ".join(name for name, _ in batches) or "batches that the script makes"
        first = where or "the loss: all layers have finite outputs"
        text = (
            f"{what} in step {self._steps.count + 1}, on rank {self._session.rank}, in {names}. The"
            f" first that is not finite: {first}. {self._save(batches, call)}"
        )
        if self._session.world_size > 1:
            self._session.world.shared.set(FOUND, text)
        return text

    def _reported(self, what: str, rank: int | None) -> str:
        """Return what another rank reports."""
        words = None if rank is None else self._wait_for([FOUND])
        if words is not None:
            return words[0].decode()
        names = " and ".join(name for name, _ in self._current_batches())
        return (
            f"{what} in step {self._steps.count + 1}, in {names or 'batches of the script'}. No"
            " rank knows the layer: detect_anomaly=True shows the operation"
        )

    def _save(self, batches: list[tuple[str, object]], call: OutermostCall | None) -> str:
        path = Path(FOLDER) / f"step{self._steps.count + 1}-rank{self._session.rank}.pt"
        contents = {
            "batches": [batch for _, batch in batches],
            "inputs": None if call is None else (call.args, call.kwargs),
        }
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as file:
                torch.save(contents, file)
        except Exception as error:
            return f"The batch could not be saved: {error}"
        return f"The batch is in {os.path.abspath(path)}"

    def _current_batches(self) -> list[tuple[str, object]]:
        """Return descriptions of the batches that feed the last backward, with the batches."""
        found: list[tuple[str, object]] = []
        for one in self._session.batches.current:
            given = dict(self._given.get(one.origin, ()))
            words = f"batch {one.number} of {one.origin.name}"
            found.append((words, given.get(one.number, one.tensors)))
        return found


SHARED = ("divides_states", "gradients_in_parts", "gradients_elsewhere")
"""Marks of strategies whose ranks call a model together."""


def calls_models_alone(session: Context) -> bool:
    """Whether a rank may call a model without the others."""
    world, plugins = session.world, [one for _, one in session.bus.plugins()]
    shares = any(getattr(one, mark, False) for one in plugins for mark in SHARED)
    return not shares and world.data.parts == world.world_size


def have_finite_gradients(optimizer: Optimizer) -> bool:
    gradients = [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    parts = [local_part(one) for one in gradients]
    dense = [one for one in parts if not one.is_sparse and one.numel()]
    sparse = [one for one in parts if one.is_sparse]
    whole = not dense or is_finite(get_total_norm(dense, float("inf")))
    return whole and all(map(is_finite, sparse))
