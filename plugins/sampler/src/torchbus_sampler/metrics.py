"""Gathers metrics of torchmetrics over ranks if their samples were divided, each sample once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.utils.data import DataLoader
from torchbus.plugin import Context, LoaderIterator, Origin, UsageError, hookimpl

from torchbus_sampler._compat import UPDATE_COUNT
from torchbus_strategy.collectives import all_gather_object

INPUTS_SEEN = "torchbus_inputs_seen"
MIXED = (
    "this {} was updated with batches that are divided over ranks, and with whole ones, and no"
    " reduction fits both. Reset it in between, or make one metric for each"
)


class Metrics:
    """Gathers metrics over ranks as their samples were divided, if there are several ranks."""

    @hookimpl
    def session_start(self, session: Context) -> None:
        if session.world_size > 1:
            session.bus.register(WatchedMetrics(session), "torchmetrics.fed")


class WatchedMetrics:
    """Tracks for each metric whether it was fed shares of batches, or whole batches.

    The record is an attribute of the metric, so copies have it, too. If the strategy divides no
    data, all batches are whole. A rank without samples in the incomplete last batch of a pass
    repeats an earlier batch. Metrics that are fed a repeated batch get their earlier state back
    when the loop is done with the batch.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        plugins = [plugin for _, plugin in session.bus.plugins()]
        self._divides = any(getattr(one, "divides_data", False) for one in plugins)
        self._passes: list[Origin] = []
        self._before_repeat: dict[int, tuple[Any, States]] = {}
        self._in_forward: set[int] = set()
        session.on_close.callback(self._take_back)
        from torchmetrics import Metric

        session.replace(Metric, "__setattr__", self._received_setattr)
        session.replace(Metric, "forward", self._received_forward)
        session.replace(Metric, "sync", self._received_sync)

    @hookimpl(trylast=True)
    def loader_opened(self, loader: DataLoader[object], iterator: LoaderIterator) -> None:
        self._turn_to(iterator.origin)

    @hookimpl(tryfirst=True)
    def loader_end(self) -> None:
        self._take_back()

    @hookimpl(tryfirst=True)
    def batch_wanted(self) -> None:
        self._take_back()  # before a checkpoint is written

    @hookimpl(trylast=True)
    def batch_ready(self, batch: object, iterator: LoaderIterator) -> None:
        if not self._passes or self._passes[-1] is not iterator.origin:
            self._turn_to(iterator.origin)

    def _turn_to(self, origin: Origin) -> None:
        others = [one for one in self._passes if one is not origin and not one.is_over]
        self._passes = [*others, origin]

    # Metrics -------------------------------------------------------------------------------------

    def _received_setattr(self, original: Callable[..., None]) -> Callable[..., None]:
        def __setattr__(metric: Any, name: str, value: Any) -> None:
            # the counter is watched, because each metric object has its own update()
            if name == UPDATE_COUNT and value == vars(metric).get(name, 0) + 1:
                now = {self._is_divided(metric)}
                vars(metric)[INPUTS_SEEN] = now if value == 1 else now | _inputs_seen(metric)
                self._note_before_repeat(metric)
            elif name == UPDATE_COUNT and value == 0 and id(metric) not in self._in_forward:
                self._before_repeat.pop(id(metric), None)  # the metric was reset
            original(metric, name, value)

        return __setattr__

    def _received_forward(self, original: Callable[..., object]) -> Callable[..., object]:
        def forward(metric: Any, *args: object, **kwargs: object) -> object:
            before = _inputs_seen(metric) if metric.update_called else set()
            self._note_before_repeat(metric)
            self._in_forward.add(id(metric))
            try:
                return original(metric, *args, **kwargs)
            finally:  # torchmetrics resets the metric during forward
                self._in_forward.discard(id(metric))
                vars(metric)[INPUTS_SEEN] = before | _inputs_seen(metric)

        return forward

    def _received_sync(self, original: Callable[..., None]) -> Callable[..., None]:
        def sync(
            metric: Any,
            dist_sync_fn: Callable[..., object] | None = None,
            process_group: ProcessGroup | None = None,
            should_sync: bool = True,
            distributed_available: Callable[[], bool] | None = None,
        ) -> None:
            if id(metric) not in self._in_forward:
                self._take_back()
            used = _inputs_seen(metric) or {self._is_divided(metric)}
            if should_sync and len(used) > 1:
                raise UsageError(MIXED.format(type(metric).__name__))
            should_sync = should_sync and True in used
            if should_sync and process_group is None:
                process_group = metric.process_group or self._group()
            gather = dist_sync_fn or gathered
            original(metric, gather, process_group, should_sync, distributed_available)

        return sync

    def _group(self) -> ProcessGroup | None:
        """One rank of each part of the data, or None for all ranks."""
        world = self._session.world
        return None if world.data.parts == world.world_size else world.mesh["dp"].get_group()

    def _is_divided(self, metric: Any) -> bool:
        """Whether the loop's present batch is this rank's share.

        Between passes, updates without gradients count as evaluation, and as whole unless they
        follow a divided evaluation.
        """
        if not self._divides or not self._passes:
            return self._divides and torch.is_grad_enabled()
        last, current = self._passes[-1], self._open_pass(metric)
        if current is not None:
            return not current.alike
        return not last.alike if last.evaluates else torch.is_grad_enabled()

    def _open_pass(self, metric: Any) -> Origin | None:
        """Return the pass that the loop's batch is from, or None between passes."""
        around = next((one for one in reversed(self._passes) if not one.is_over), None)
        if around is None or around is self._passes[-1]:
            return around
        return around if torch.is_grad_enabled() or _inputs_seen(metric) == {True} else None

    # Repeated batches ----------------------------------------------------------------------------

    def _note_before_repeat(self, metric: Any) -> None:
        """Store the states of a metric that is about to be fed a batch that this rank repeats."""
        current = self._open_pass(metric) if self._divides else None
        if current is None or current.alike or id(metric) in self._before_repeat:
            return
        batches = self._session.batches.current if current.ahead else ()
        share = next((one.share for one in batches if one.origin is current), current.share)
        if share is not None and not share.weight:
            states = {
                name: list(state) if isinstance(state, list) else state.clone()
                for name, state in metric.metric_state.items()
            }
            self._before_repeat[id(metric)] = metric, states

    def _take_back(self) -> None:
        noted, self._before_repeat = self._before_repeat, {}
        for metric, states in noted.values():
            for name, state in states.items():
                setattr(metric, name, state)


States = dict[str, Tensor | list[Tensor]]


def gathered(tensor: Tensor, group: ProcessGroup | None = None) -> list[Tensor]:
    """Gather as torchmetrics does, also if a rank has no samples, or a single number.

    A rank without samples has an empty tensor of any dtype and shape; a single number is a tensor
    without dimensions.
    """
    from torchmetrics.utilities.distributed import gather_all_tensors

    kind = (tensor.dtype, tuple(tensor.shape))
    kinds = all_gather_object(kind, dist.get_world_size(group), group)
    filled = next(((dtype, shape) for dtype, shape in kinds if 0 not in shape), None)
    if filled is not None and not tensor.numel():
        tensor = tensor.new_empty((0, *filled[1][1:]), dtype=filled[0])
    if not tensor.dim() and any(shape for _, shape in kinds):
        tensor = tensor.unsqueeze(0)
    found: list[Tensor] = gather_all_tensors(tensor, group)
    return found


def _inputs_seen(metric: Any) -> set[bool]:
    """Return whether a metric was fed shares (True), whole batches (False), or both."""
    seen: set[bool] = vars(metric).get(INPUTS_SEEN, set())  # a type that checkpoints save
    return seen
