"""The logger "neptune", and one run for scripts that call ``init_run`` themselves."""

from __future__ import annotations

import atexit
import importlib
import math
import os
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, Protocol, cast

from torchbus.plugin import Context, PluginError, UsageError, an, expect, hookimpl, warn

from torchbus_log.trackers.tracker import Tracker, chosen_by_rank0
from torchbus_log.trackers.values import Image

MODES = ("async", "sync", "offline", "read-only", "debug")
MARGIN_S = 5.0
NO_SERVER = (
    "neptune has no API token, and its hosted service was shut down in March 2026. Give"
    " NeptuneLogger the token of a self-hosted server, or mode='offline'; `neptune sync` sends an"
    " offline folder to a server later"
)


class NeptuneLogger(Tracker):
    """One Neptune run for all ranks, which rank 0 writes with the ``neptune`` client.

    ``experiment`` is the client's run.

    Neptune's hosted service was shut down in March 2026. These still work: ``mode="offline"``, a
    self-hosted server (its address is in the API token), and servers with the same protocol.

    Args:
        project, api_token, custom_run_id, tags: as in ``neptune.init_run``.
        mode: "async", "sync", "offline", "read-only" or "debug"; None: the client's default.
        run: a run that the script has made. The session does not stop it at the end.
        client: a module with ``init_run``, instead of ``neptune``.
        ranks: "main" if rank 0 reports for all ranks. "all" if every rank writes to the same run,
            by one ``custom_run_id``.
        on_error, start_timeout_s, finish_timeout_s: as in ``torchbus_log``'s ``Tracker``.

    Metrics are series ``metrics/<name>``. Measurements of the machine are under
    ``system/rank<r>/``, and those of the client under ``monitoring/rank<r>/``. Hyperparameters are
    under ``parameters/``, and the session's configuration is under ``torchbus/``.

    Source: https://docs-legacy.neptune.ai/api/neptune

    Raises:
        UsageError: an option has another type or value.
    """

    name = "neptune"
    names_elsewhere: ClassVar = {"offline": "mode='offline'"}

    def __init__(
        self,
        *,
        project: str | None = None,
        api_token: str | None = None,
        mode: str | None = None,
        custom_run_id: str | None = None,
        tags: Sequence[str] | None = None,
        run: NeptuneRun | None = None,
        client: ModuleType | None = None,
        **policy: Any,
    ) -> None:
        super().__init__(**policy)
        if mode is not None and mode not in MODES:
            raise UsageError(
                f"NeptuneLogger(mode={mode!r}) is unknown: use one of {', '.join(MODES)}"
            )
        for word, value in (
            ("project", project),
            ("api_token", api_token),
            ("custom_run_id", custom_run_id),
        ):
            _check_text(word, value)
        if client is not None and not hasattr(client, "init_run"):
            raise UsageError(
                f"NeptuneLogger(client={getattr(client, '__name__', client)!r}) has no init_run:"
                " pass a module such as neptune"
            )
        expect("tags", tags, (list, tuple, type(None)), "a list of texts")
        texts = {"project": project, "custom_run_id": custom_run_id, "mode": mode}
        given = {**texts, "tags": list(tags) if tags else None}
        self._given = {word: value for word, value in given.items() if value is not None}
        self._token = api_token
        self._run = run
        self._client = client
        self._series = SeriesAppender()
        self._rank = 0

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._rank = session.rank
        if self._ranks == "all" and session.world_size > 1:
            given = self._given.get("custom_run_id")
            self._given["custom_run_id"] = chosen_by_rank0(
                session, "neptune/id", lambda: str(given or secrets.token_hex(8))
            )
        if self._reports(session) and self._has_no_server():
            self._stay_offline()
        super().session_start(session)

    def _has_no_server(self) -> bool:
        """Whether the client would connect to the hosted service, which was shut down."""
        token = self._token or os.environ.get("NEPTUNE_API_TOKEN")
        mine = self._run is not None or self._client is not None
        return not (mine or token) and self.needs_network()

    def _stay_offline(self) -> None:
        if self._raises:
            raise PluginError(NO_SERVER)
        self._given["mode"] = "offline"
        warn(f"{NO_SERVER}. It continues offline, in the folder {self.folder()}")

    def import_client(self) -> None:
        if self._run is None and self._client is None:
            self._client = importlib.import_module("neptune")

    def needs_network(self) -> bool:
        return (self._given.get("mode") or os.environ.get("NEPTUNE_MODE")) not in (
            "offline",
            "debug",
        )

    def open_run(self, session: Context, config: dict[str, object], offline: bool) -> NeptuneRun:
        run = self._run
        if run is None:
            assert self._client is not None
            token = {} if self._token is None else {"api_token": self._token}
            options: dict[str, object] = {
                **self._given,
                **token,
                "monitoring_namespace": f"monitoring/rank{session.rank}",
            }
            if offline:
                options["mode"] = "offline"
            run = cast(NeptuneRun, self._client.init_run(**options))
        if session.is_main:
            run["torchbus"] = storable(config)
        return run

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        for name, value in metrics.items():
            self._series.append(self.experiment, f"metrics/{name}", value, step)
        if epoch is not None:
            self._series.append(self.experiment, "metrics/epoch", epoch, step)

    def send_image(self, name: str, image: Image, step: int) -> None:
        """Append to a series of files, because the client's pictures would need another package."""
        from neptune.types import File

        picture = File.from_content(image.png(), extension="png")
        self.experiment[f"images/{name}"].append(picture, step=step)

    def send_hyperparameters(self, values: dict[str, Any]) -> None:
        self.experiment["parameters"] = storable(values)

    def send_system(self, metrics: dict[str, float], time_s: float) -> None:
        for name, value in metrics.items():
            self._series.append(self.experiment, f"system/rank{self._rank}/{name}", value, time_s)

    def close_run(self, run: NeptuneRun, failed: bool) -> None:
        for path, count in self._series.not_finite.items():
            run[f"not_finite/{path}"] = count
        if failed:
            run["sys/failed"] = True
        if run is not self._run:
            run.stop(seconds=max(self._finish_timeout_s - MARGIN_S, 1.0))

    def folder(self) -> str:
        return os.environ.get("NEPTUNE_DATA_DIRECTORY", ".neptune")

    def secrets(self) -> list[str | None]:
        return [self._token]


def _check_text(word: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise UsageError(
            f"NeptuneLogger({word}=...) is {an(type(value).__name__)}: it must be a text"
        )


STEP_BETWEEN = 0.001


class SeriesField(Protocol):
    """A series in a run."""

    def append(self, value: float, *, step: float) -> object: ...


class NeptuneRun(Protocol):
    """The methods of a run of the ``neptune`` client that the logger calls."""

    def __getitem__(self, path: str) -> SeriesField: ...

    def __setitem__(self, path: str, value: object) -> None: ...

    def stop(self, *, seconds: float) -> object: ...


class SeriesAppender:
    """Appends to the series of a run.

    If a step is not larger than the last one of its series, the value is stored a thousandth of a
    step after the last one. The server refuses NaN and infinities, so these are only counted.
    """

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self.not_finite: Counter[str] = Counter()

    def append(self, run: NeptuneRun, path: str, value: float, step: float) -> None:
        """Append a number. Count it instead if it is not finite."""
        if not math.isfinite(value):
            self.not_finite[path] += 1
            return
        last = self._last.get(path)
        self._last[path] = at = float(step) if last is None or step > last else last + STEP_BETWEEN
        run[path].append(value, step=at)


def storable(values: Mapping[str, object]) -> dict[str, object]:
    """Return values as Neptune stores them: nested dicts of strings, numbers and booleans.

    Lists and None become text. A "/" in a key becomes "_".
    """
    return {
        key.replace("/", "_") or "_": (
            storable(value)
            if isinstance(value, dict)
            else value
            if isinstance(value, str | int | float)
            else str(value)
        )
        for key, value in values.items()
    }


FOLDER = "NEPTUNE_DATA_DIRECTORY"  # the client reads it when a run begins


class OneNeptuneRun:
    """Silences the script's runs on ranks other than 0, by the client's mode "debug".

    This mode sends nothing. Its files go to a temporary folder.
    """

    @hookimpl
    def session_start(self, session: Context) -> None:
        from neptune import Run

        if not session.is_main and not NeptuneLogger.has_all_ranks(session):
            folder = tempfile.mkdtemp()
            session.on_close.callback(shutil.rmtree, folder, ignore_errors=True)
            session.replace(Run, "__init__", partial(silent, folder))

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]] | None:
        if session.world_size == 1 or NeptuneLogger.has_all_ranks(session):
            return None
        return {"loggers": ["neptune: where the script calls it itself, rank 0's calls count"]}


def silent(folder: str, original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: object, *args: object, **kwargs: object) -> None:
        before = os.environ.get(FOLDER)
        os.environ[FOLDER] = folder
        try:
            original(self, *args, **{**kwargs, "mode": "debug"})
        finally:
            del os.environ[FOLDER]
            if before is not None:
                os.environ[FOLDER] = before

    return __init__


def before_the_block() -> None:
    """Silence runs that a launched rank makes before the block."""
    from neptune import Run

    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Run.__init__ = silent(folder, Run.__init__)  # type: ignore[method-assign]
