"""The logger "wandb", and one run for scripts that call ``wandb.init`` themselves."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from torchbus.plugin import Context, hookimpl

if TYPE_CHECKING:
    import wandb
import importlib
import re
import secrets
from collections.abc import Sequence

import torch
from torchbus.plugin import UsageError, expect

from torchbus_log.trackers.tracker import NullObject, Tracker, chosen_by_rank0, refuse_passed
from torchbus_log.trackers.values import Histogram, Image

MODES = ("online", "offline", "disabled", "shared")
MARGIN_S = 5.0
LOGIN_S = 10.0
"""How long wandb waits for a server that does not answer before ``init_timeout`` starts to count.

wandb asks the server twice who owns the key.
"""


def step_as_metric(original: Callable[..., None]) -> Callable[..., None]:
    """Let the script's ``log(..., step=)`` write its step as the metric "step", like the logger.

    wandb drops values whose ``step=`` is not larger than the last one.
    """

    def log(
        data: dict[str, Any],
        step: int | None = None,
        commit: bool | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        stepped = data if step is None else {"step": step, **data}
        original(stepped, None, commit, *args, **kwargs)

    return log


class WandbLogger(Tracker):
    """One Weights & Biases run for all ranks, which rank 0 writes.

    ``experiment`` is the ``wandb.Run``.

    Args:
        project, entity, name, id, group, tags, resume: as in ``wandb.init``. ``id`` and
            ``resume="allow"`` continue the run of this id, or begin it.
        mode: "online", "offline", "disabled" or "shared"; None: wandb's default.
        settings: a ``wandb.Settings``, or a dict of settings. They override the logger's.
        options: further arguments of ``wandb.init``, such as ``dir``, ``notes`` and ``job_type``.
        log_checkpoints: at the end, upload the last version of each file that ``torch.save`` wrote,
            as an artifact.
        ranks: "main" if rank 0 reports for all ranks. "all" if every rank writes to the same run,
            by wandb's shared mode; offline, each rank writes a separate run, in one group.
        on_error, start_timeout_s, finish_timeout_s: as in ``torchbus_log``'s ``Tracker``.

    Source: https://docs.wandb.ai/models/track/log/distributed-training

    Raises:
        UsageError: an option has another type or value, or ``options`` has an argument that the
            logger itself gives to ``wandb.init``.
    """

    companions = ("log", "wandb_one_run")
    name = "wandb"
    names_elsewhere: ClassVar = {
        **{name: f"options={{{name!r}: ...}}" for name in ("dir", "job_type", "notes")},
        "config": "s.log_hyperparams(...)",
        "log_model": "log_checkpoints=True",
        "offline": "mode='offline'",
        "save_dir": "options={'dir': ...}",
        "version": "id=",
    }

    def __init__(
        self,
        *,
        project: str | None = None,
        entity: str | None = None,
        name: str | None = None,
        id: str | None = None,
        group: str | None = None,
        mode: str | None = None,
        tags: Sequence[str] | None = None,
        resume: str | bool | None = None,
        settings: wandb.Settings | dict[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        log_checkpoints: bool = False,
        **policy: Any,
    ) -> None:
        super().__init__(**policy)
        if mode is not None and mode not in MODES:
            raise UsageError(
                f"WandbLogger(mode={mode!r}) is unknown: use one of {', '.join(MODES)}"
            )
        texts = {"project": project, "entity": entity, "name": name, "id": id, "group": group}
        for word, value in texts.items():
            expect(word, value, (str, type(None)), "a text")
        expect("resume", resume, (str, bool, type(None)), "'allow', 'must', 'never' or 'auto'")
        expect("options", options, (Mapping, type(None)), "a dict")
        expect("log_checkpoints", log_checkpoints, bool, "True or False")
        given = {**texts, "tags": tags, "resume": resume}
        passed = {word: f"{word}=" for word in (*given, "mode", "settings")}
        refuse_passed(self, options or {}, {**passed, "config": "s.log_hyperparams(...)"})
        chosen = {word: value for word, value in given.items() if value is not None}
        self._given = {**chosen, **(options or {})}
        self._mode = mode
        self._settings = settings
        self._checkpoints = Checkpoints() if log_checkpoints else None
        self._id: str | None = None

    @hookimpl
    def session_start(self, session: Context) -> None:
        if self._ranks == "all" and session.world_size > 1:
            self._id = chosen_by_rank0(
                session, "wandb/id", lambda: str(self._given.get("id") or secrets.token_hex(4))
            )
        if self._checkpoints is not None and session.is_main:
            session.bus.register(self._checkpoints, "wandb.checkpoints")
        super().session_start(session)
        wandb = sys.modules.get("wandb")
        if wandb is not None and not isinstance(self.experiment, NullObject):
            session.replace(wandb, "init", self._same_run)
            session.replace(wandb, "log", step_as_metric)
            session.replace(self.experiment, "log", step_as_metric)

    def _same_run(self, original: Callable[..., wandb.Run]) -> Callable[..., wandb.Run]:
        """Let the script's ``wandb.init`` return the logger's run, so that there is only one."""

        def init(*args: object, **kwargs: object) -> wandb.Run:
            config = kwargs.get("config")
            if isinstance(config, dict):
                self.experiment.config.update(self._redactor.plain(config), allow_val_change=True)
            run: wandb.Run = self.experiment
            return run

        return init

    def import_client(self) -> None:
        importlib.import_module("wandb")

    def needs_network(self) -> bool:
        return (self._mode or os.environ.get("WANDB_MODE")) not in ("offline", "disabled")

    def open_run(self, session: Context, config: dict[str, Any], offline: bool) -> wandb.Run:
        import wandb

        mode = "offline" if offline else self._mode
        options = {
            **self._given,
            "mode": mode,
            **self._place(session, mode or os.environ.get("WANDB_MODE")),
        }
        run = wandb.init(
            **options, config={"torchbus": config}, settings=self._all_settings(session)
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return run

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        """Send metrics, with the session's step as the metric "step"."""
        self.experiment.log(
            {**metrics, "step": step, **({} if epoch is None else {"epoch": epoch})}
        )

    def send_image(self, name: str, image: Image, step: int) -> None:
        import wandb

        self.experiment.log({name: wandb.Image(image.pixels().numpy()), "step": step})

    def send_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        import numpy
        import wandb

        both = numpy.asarray(histogram.counts), numpy.asarray(histogram.edges)
        counted = wandb.Histogram(np_histogram=both)
        self.experiment.log({name: counted, "step": step})

    def send_hyperparameters(self, values: dict[str, Any]) -> None:
        self.experiment.config.update(values, allow_val_change=True)

    def send_system(self, metrics: dict[str, float], time_s: float) -> None:
        found = {**metrics, "time_s": time_s}
        self.experiment.log({f"system/{name}": value for name, value in found.items()})

    def close_run(self, run: wandb.Run, failed: bool) -> None:
        """End the run. Raises TimeoutError if the client has not sent all calls in time."""
        if self._checkpoints is not None:
            self._checkpoints.upload(run)
        try:
            run.finish(exit_code=int(failed))
        except TimeoutError as error:
            done, settings = self._calls.made - self._calls.failures, run.settings
            reported = (
                f"not everything was sent within {settings.finish_timeout:g} s. {done} calls are"
                f" kept: wandb sync {settings.sync_dir}"
            )
            raise TimeoutError(reported) from error

    def folder(self) -> str | None:
        return getattr(getattr(self.experiment, "settings", None), "sync_dir", None) or None

    def secrets(self) -> list[str | None]:
        settings = self._settings
        if isinstance(settings, dict):
            return [settings.get("api_key")]
        return [getattr(settings, "api_key", None)]

    def _place(self, session: Context, mode: str | None) -> dict[str, Any]:
        """Return the arguments that choose this rank's run, if all ranks report.

        It is one run for all ranks; offline it is a separate run in one group.
        """
        if self._id is None:
            return {}
        if mode == "offline":
            return {
                "id": f"{self._id}-rank{session.rank}",
                "group": self._given.get("group", self._id),
            }
        return {"id": self._id, "mode": "disabled" if mode == "disabled" else "shared"}

    def _all_settings(self, session: Context) -> wandb.Settings:
        """Return the logger's settings, overridden by the caller's."""
        import wandb

        given = self._settings if isinstance(self._settings, dict) else {}
        settings = wandb.Settings(**{**self._limits(), **self._local_settings(session), **given})
        if isinstance(self._settings, wandb.Settings):
            settings.update_from_settings(self._settings)
        return settings

    def _limits(self) -> dict[str, float | bool]:
        """Return time limits for wandb below the logger's, so that wandb gives up first."""
        return {
            "init_timeout": max(self._start_timeout_s - LOGIN_S - MARGIN_S, 1.0),
            "login_timeout": max(self._start_timeout_s - MARGIN_S, 1.0),
            "finish_timeout": max(self._finish_timeout_s - MARGIN_S, 1.0),
            "finish_timeout_raises": True,
        }

    def _local_settings(self, session: Context) -> dict[str, Any]:
        mine: dict[str, Any] = {}
        gpu = physical_gpu(session.device)
        if session.redactor.command_line(sys.argv) != sys.argv:
            # wandb would store the command line as it is; the run's configuration has it without
            # secrets
            mine["x_disable_meta"] = True
        if gpu is not None:
            mine["x_stats_gpu_device_ids"] = [gpu]
        if self._id is not None:
            mine |= {
                "x_label": f"rank_{session.rank}",
                "x_primary": session.is_main,
                "x_update_finish_state": session.is_main,
            }
        return mine


class Checkpoints:
    """Notes the files that ``torch.save`` writes, and uploads each once, when the run ends.

    So a run has one version of each file, even if the file was overwritten.
    """

    def __init__(self) -> None:
        self._paths: dict[str, None] = {}

    @hookimpl(tryfirst=True)
    def save_file(self, path: str) -> None:
        self._paths[os.path.abspath(path)] = None

    def upload(self, run: wandb.Run) -> None:
        import wandb

        for path in filter(os.path.isfile, self._paths):
            name = re.sub(r"[^\w.-]", "_", f"{run.id}-{os.path.basename(path)}")
            artifact = wandb.Artifact(name, type="model")
            artifact.add_file(path)
            run.log_artifact(artifact)


def physical_gpu(device: torch.device) -> int | None:
    """Return the driver's number of a rank's GPU.

    Returns None for a CPU, or if CUDA_VISIBLE_DEVICES does not contain numbers.
    """
    if device.type != "cuda" or device.index is None:
        return None
    visible = [
        word.strip()
        for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if word.strip()
    ]
    if not visible:
        return device.index
    if device.index >= len(visible) or not visible[device.index].isdigit():
        return None
    return int(visible[device.index])


SHARED_FIELDS = ("id", "name", "dir")
RANK0_WITHIN_S = 60.0
"""How long another rank waits for rank 0's run. The script may not make one on rank 0."""


class OneWandbRun:
    """Disables wandb on ranks other than 0 until the session ends, like ``WANDB_MODE=disabled``.

    On these ranks all calls of wandb still work, and do nothing. If the script has imported wandb
    before the block, this also holds for calls with another ``mode=``. A run has the id, name and
    folder of rank 0's run, so all ranks use the same paths.

    Source: https://docs.wandb.ai/models/track/environment-variables
    """

    def __init__(self) -> None:
        self._runs = 0

    @hookimpl(trylast=True)
    def session_start(self, session: Context) -> None:
        if session.world_size == 1 or WandbLogger.has_all_ranks(session):
            return
        if not session.is_main:
            session.on_close.callback(_restore, os.environ.get("WANDB_MODE"))
            os.environ["WANDB_MODE"] = "disabled"
        wandb = sys.modules.get("wandb")
        if wandb is None:
            return
        if wandb.run is not None:
            self._agree(session, wandb.run)
        if not session.is_main:
            session.replace(wandb, "init", _disabled)
        session.replace(wandb, "init", partial(self._made, session))

    def _made(self, session: Context, original: Callable[..., wandb.Run]) -> Callable[..., object]:
        def init(*args: object, **kwargs: object) -> object:
            return self._agree(session, original(*args, **kwargs))

        return init

    def _agree(self, session: Context, run: wandb.Run) -> wandb.Run:
        """Give the run of every rank the id, name and folder of rank 0's run."""
        self._runs += 1
        key, store = f"wandb/run/{self._runs}", session.world.shared
        if session.is_main:
            store.set(key, json.dumps({name: getattr(run, name) for name in SHARED_FIELDS}))
        elif session.job is not None and session.job.wait_until(
            lambda store: store.check([key]), RANK0_WITHIN_S
        ):
            mine = {name: property(_always(value)) for name, value in _read(store.get(key)).items()}
            run.__class__ = type(type(run).__name__, (type(run),), mine)
        return run

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]] | None:
        if session.world_size == 1 or WandbLogger.has_all_ranks(session):
            return None
        return {"loggers": ["wandb: where the script calls it itself, rank 0's calls count"]}


def _read(text: bytes) -> dict[str, Any]:
    return dict(json.loads(text))


def _always(value: object) -> Callable[[object], object]:
    return lambda run: value


def _disabled(original: Callable[..., wandb.Run]) -> Callable[..., wandb.Run]:
    def init(*args: object, **kwargs: object) -> wandb.Run:
        return original(*args, **{**kwargs, "mode": "disabled"})

    return init


def before_the_block() -> None:
    """Silence runs that a launched rank makes before the block."""
    wandb: Any = sys.modules["wandb"]
    wandb.init = _disabled(wandb.init)


def _restore(mode: str | None) -> None:
    if mode is None:
        os.environ.pop("WANDB_MODE", None)
    else:
        os.environ["WANDB_MODE"] = mode
