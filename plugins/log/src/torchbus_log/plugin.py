"""``s.log`` and the other verbs that log, and norms of gradients."""

from __future__ import annotations

import dataclasses
import math
import weakref
from argparse import Namespace
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from torchbus.bus.registry import Listeners
from torchbus.bus.verbs import refuse_outside
from torchbus.plugin import Context, UsageError, an, expect, hookimpl

from torchbus_log import events
from torchbus_log.autolog import Autolog
from torchbus_log.gatherer import PLAINLY, Gatherer, How, LogOptions, how
from torchbus_log.passes import OpenPasses
from torchbus_log.totals import Metric, Value, check_name, check_step, to_value
from torchbus_log.trackers.values import Image, Values
from torchbus_strategy import sharding

if TYPE_CHECKING:
    from typing_extensions import Unpack

Parts = Literal["layer", "parameter"]


class Log:
    """Gathers values, and sends them to the loggers at log points. Without a logger, does nothing.

    Args:
        log_every_n_steps: the number of real optimizer steps between two log points.
        autolog: whether to log loss, learning rates, gradient norm, samples per second and step
            time automatically.
        log_grad_norms: "layer" or "parameter": at log points, log the norm of the gradients of each
            layer (a module that has parameters directly) or parameter, after clipping.

    Raises:
        UsageError: if an option has a wrong type or value.
    """

    hears_trials = False
    owns = ("log",)
    verbs = ("log", "log_dict", "logged", "log_image", "log_histogram", "log_hyperparams")
    declares_events = events
    tried_with = ({"logger": "local", "log_grad_norms": "layer", "log_every_n_steps": 1},)

    def __init__(
        self,
        *,
        log_every_n_steps: int = 50,
        autolog: bool = True,
        log_grad_norms: Parts | None = None,
    ) -> None:
        expect("log_every_n_steps", log_every_n_steps, int, "a number of optimizer steps")
        expect("autolog", autolog, bool, "True or False")
        if log_every_n_steps < 1:
            raise UsageError(f"log_every_n_steps={log_every_n_steps}: it must be 1 or more")
        if log_grad_norms not in (None, *get_args(Parts)):
            raise UsageError(
                f"log_grad_norms={log_grad_norms!r} is unknown: use 'layer' or 'parameter'"
            )
        self._every = log_every_n_steps
        self._wants_autolog = autolog
        self._parts = log_grad_norms
        self._session: Context | None = None
        self._gatherer: Gatherer | None = None
        self._listens = False
        self._skips: Listeners | None = None
        self._listeners: Listeners | None = None

    # Verbs ---------------------------------------------------------------------------------------

    def log(self, name: str, value: object, **options: Unpack[LogOptions]) -> None:
        """Log one value: a number, a tensor of one element on any device, a torchmetrics object.

        Options: ``on_step=True, on_epoch=False, sync_dist=None, reduce="mean", batch_size=None,
        prog_bar=False, step=None``. All ranks must log values that are reduced over ranks, in the
        same order; any rank may log others. Raises UsageError for other values and options.
        """
        self._send("log", {name: value}, options)

    def log_dict(self, metrics: Mapping[str, object], **options: Unpack[LogOptions]) -> None:
        """Log several values by name, with the options of ``log``, on the same ranks.

        Raises UsageError if ``metrics`` is not a mapping.
        """
        if not isinstance(metrics, Mapping) and not hasattr(metrics, "keys"):  # MetricCollection
            raise UsageError(
                f"s.log_dict({type(metrics).__name__}): pass a dict from names to values"
            )
        self._send("log_dict", dict(metrics), options)

    def logged(self, name: str) -> float:
        """Return the last value that was logged by this name, as loggers get it.

        A value of ``on_epoch`` or ``sync_dist`` is reduced over ranks, so it is equal on all. It is
        complete when the pass over the loader has ended. All ranks must call this. While a resumed
        run is replayed, it returns NaN. Raises UsageError for a name without a value, and without a
        logger for a name that nothing monitors.
        """
        if not self._wants(name, "logged", None):
            return math.nan
        if self._gatherer is None:
            raise UsageError(
                f"s.logged({name!r}) without a logger: no value was stored. Pass logger='local'"
            )
        return self._gatherer.latest(name)

    def log_image(self, name: str, image: object, *, step: int | None = None) -> None:
        """Log a picture. The loggers of rank 0 get it at once. Other ranks may call this, too.

        ``image`` is a tensor (height, width) or (channels, height, width), or a NumPy array or PIL
        image (height, width) or (height, width, channels), with 1, 3 or 4 channels. Floats are in
        [0, 1], integers uint8. Rank 0 waits for the device. Raises UsageError for other images.
        """
        if self._wants(name, "log_image", step):
            self._pass_on("image_ready", name, step, image=Image(name, image))

    def log_histogram(
        self, name: str, values: object, *, bins: int = 64, step: int | None = None
    ) -> None:
        """Log how the values of a tensor or an array are distributed, at once.

        ``values`` are real numbers of any shape and dtype, and ``bins`` is the number of equal
        bins. Rank 0 counts only its values, on their device, and waits for it. A DTensor is
        gathered, so all ranks must call this for it. Raises UsageError for other values.
        """
        if self._wants(name, "log_histogram", step):
            whole = sharding.whole(values) if isinstance(values, Tensor) else values
            self._pass_on("histogram_ready", name, step, values=Values(name, whole, bins))

    def log_hyperparams(self, values: object = None, **more: object) -> None:
        """Pass the run's settings to the loggers. All ranks must call this.

        Pass a mapping, an ``argparse.Namespace``, a dataclass, or keywords.
        """
        assert self._session is not None
        self._session.bus.hook.hyperparameters(values={**_mapping(values), **more})

    def _wants(self, name: str, verb: str, step: int | None) -> bool:
        """Whether a verb has anything to log. Raises UsageError for a wrong name or step."""
        check_name(name, verb)
        check_step(step, verb)
        if self._skips is None:
            refuse_outside(verb, has_begun=False)
            return False
        return not any(skip() for skip in self._skips.now)

    def _pass_on(self, event: str, name: str, step: int | None, **what: object) -> None:
        gatherer = self._gatherer
        if gatherer is not None and self._session is not None:
            at, epoch = gatherer.step if step is None else step, gatherer.passes.epoch
            shown = gatherer.shown(name)
            getattr(self._session.bus.hook, event)(name=shown, **what, step=at, epoch=epoch)

    def _send(self, verb: str, metrics: dict[str, object], options: LogOptions) -> None:
        if self._skips is None or self._listeners is None:
            return refuse_outside(verb, has_begun=False)
        for skip in self._skips.now:
            if skip():
                return None
        for listener in self._listeners.now:
            listener(metrics, options)

    def _end(self) -> None:
        self._skips = self._listeners = None

    # Events --------------------------------------------------------------------------------------

    @hookimpl(trylast=True)
    def session_start(self, session: Context) -> None:
        """Begin if a logger listens on any rank, or a plugin monitors a value."""
        self._session = session
        session.on_close.callback(self._end)
        self._skips = session.bus.listeners("skip_logging")
        self._listeners = session.bus.listeners("log_metrics")
        if session.is_inside:
            return  # the first s.log in a session without a logger has created this plugin
        listens = any(session.all_gather_object(session.bus.has_listeners("metrics_ready")))
        refuse_unused(session.options, listens)
        monitored = {name for name in session.bus.hook.monitored_name() if name}
        if listens or monitored:
            session.batches.follow()
            passes = OpenPasses(session)
            autolog = Autolog(passes, session.steps) if self._wants_autolog else None
            self._gatherer = Gatherer(session, self._every, passes, autolog, monitored, listens)
            self._listens = listens
            session.bus.register(self._gatherer, "log.points")
            if autolog is not None:
                session.bus.register(autolog, "log.autolog")
            if self._parts is not None:
                norms = GradNorms(session, self._gatherer, self._every, self._parts)
                session.bus.register(norms, "log.grad_norms")
            session.on_close.push(self._gatherer.end)

    @hookimpl
    def log_metrics(self, metrics: dict[str, object], options: dict[str, object]) -> None:
        gatherer = self._gatherer
        manner = how(options) if options else PLAINLY
        for name, value in metrics.items():
            if not name or type(name) is not str:
                check_name(name)
            if type(value) is float:
                number: Value = value
            elif isinstance(value, (Tensor, Real)) or not isinstance(value, Metric):
                number = to_value(name, value)
            else:
                self._log_metric(name, value, manner)
                continue
            if manner is not PLAINLY and not (manner.on_epoch or manner.in_step):
                raise UsageError(
                    f"s.log({name!r}, ..., on_step=False) logs nothing: pass on_epoch=True as well"
                )
            if gatherer is None:
                continue
            if manner is PLAINLY:
                gatherer.add_plainly(name, number)
            else:
                gatherer.add(name, number, manner)
        if gatherer is not None:
            gatherer.logged()

    def _log_metric(self, name: str, metric: Metric, manner: How) -> None:
        if manner.on_step:
            raise UsageError(
                f"s.log({name!r}, ..., on_step=True): {an(type(metric).__name__)} is computed at"
                " the end of the pass, not in a step. For a step's value, log what a call of it"
                " returns, under another name"
            )
        for option in ("reduce", "batch_size", "step"):
            if getattr(manner, option) != getattr(PLAINLY, option):
                raise UsageError(
                    f"s.log({name!r}, ..., {option}=...): {an(type(metric).__name__)} has its own"
                    " way: leave it out, or log metric.compute()"
                )
        if self._gatherer is not None:
            self._gatherer.add_metric(name, metric, manner.prog_bar)

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        if not self._listens:
            return {"log": ["s.log works; no logger is named, so nothing is written"]}
        auto = (
            "also loss, rates and times, automatically" if self._wants_autolog else "autolog=False"
        )
        return {
            "log": [
                f"log points: every {self._every} steps, at the end of each training pass, and of"
                f" the session; {auto}"
            ]
        }


def refuse_unused(options: Mapping[str, object], listens: bool) -> None:
    """Raise UsageError for options of log points if there are none.

    With ``logger=None`` or ``logger=False``, the options are accepted.
    """
    asked = [
        f"{name}={options[name]!r}"
        for name in ("log_every_n_steps", "autolog", "log_grad_norms")
        if options.get(name)
    ]
    if asked and not listens and options["logger"] == ():
        raise UsageError(
            f"{', '.join(asked)} without a logger: it would do nothing. Pass logger='local' as"
            " well, or leave it out; with logger=None it is accepted"
        )


def _mapping(values: object) -> dict[str, object]:
    if values is None:
        return {}
    if isinstance(values, Namespace):
        return dict(vars(values))
    if isinstance(values, Mapping):
        return dict(values)
    if dataclasses.is_dataclass(values) and not isinstance(values, type):
        return {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}
    raise UsageError(
        f"s.log_hyperparams({type(values).__name__}): pass a dict, an argparse.Namespace or a"
        " dataclass"
    )


class GradNorms:
    """Logs norms of the gradients that a step uses: averaged over ranks, unscaled and clipped.

    Strategies whose ranks hold parts of gradients compute the norm of the whole gradients, as for
    ``clip_grad_norm_``. So all ranks compute the same norms, even ranks without a gradient.
    """

    hears_trials = False

    def __init__(self, session: Context, gatherer: Gatherer, every: int, parts: Parts) -> None:
        self._session = session
        self._gatherer = gatherer
        self._every = every
        self._parts = parts
        self._steps = session.steps.follow()
        self._named: weakref.WeakKeyDictionary[Optimizer, dict[str, list[Tensor]]] = (
            weakref.WeakKeyDictionary()
        )

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if optimizer is not None:
            self._named.pop(optimizer, None)

    @hookimpl(trylast=True)
    def gradients_ready(self, optimizer: Optimizer) -> None:
        count = self._steps.count
        step = count + (not count or self._steps.has_stepped(optimizer))
        if step % self._every == 0 and self._session.captures(optimizer):
            if optimizer not in self._named:
                self._named[optimizer] = self._parts_of(optimizer)
            for name, parameters in self._named[optimizer].items():
                if any(one.requires_grad for one in parameters):
                    self._gatherer.add(name, self._norm(parameters), How(step=step))

    def _parts_of(self, optimizer: Optimizer) -> dict[str, list[Tensor]]:
        place = len(self._named)
        label = "grad_norm" if place == 0 else f"grad_norm_{place + 1}"
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        found: dict[str, list[Tensor]] = {}
        for index, (name, one) in enumerate(
            zip(self._session.names_of(parameters), parameters, strict=True)
        ):
            part = name.rpartition(".")[0] if self._parts == "layer" else name
            found.setdefault(f"{label}/{part or f'parameter{index}'}", []).append(one)
        return found

    @torch.no_grad()
    def _norm(self, parameters: list[Tensor]) -> Tensor:
        def run(max_norm: float) -> Tensor:
            gradients = [one.grad for one in parameters if one.grad is not None]
            dense = [one.coalesce().values() if one.is_sparse else one for one in gradients]
            norm: Tensor = sharding.whole(get_total_norm(dense))
            return norm

        answer = self._session.bus.hook.clip_gradients(
            parameters=parameters, max_norm=math.inf, norm_type=2.0, run=run
        )
        return (run(math.inf) if answer is None else answer).detach().reshape(())
