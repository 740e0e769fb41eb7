"""Events that torchbus-log adds: logged values in transit to loggers."""

from __future__ import annotations

from typing import Any

from torchbus.plugin import hookspec

from torchbus_log.trackers.values import Image, LoggedTable, Values

HOT = ("skip_logging", "log_metrics")


@hookspec
def hyperparameters(values: dict[str, Any]) -> None:
    """``s.log_hyperparams`` was called. ``values`` are as the user passed them."""


@hookspec
def image_ready(name: str, image: Image, step: int, epoch: int | None) -> None:
    """``s.log_image`` was called. Loggers listen to this. ``image.pixels()`` copies the picture to
    the host, so call it only on a rank that reports.
    """


@hookspec
def histogram_ready(name: str, values: Values, step: int, epoch: int | None) -> None:
    """``s.log_histogram`` was called. Loggers listen to this. ``values.counted()`` uses the device,
    so call it only on a rank that reports.
    """


@hookspec
def table_ready(name: str, table: LoggedTable, step: int) -> None:
    """A plugin has a table or a curve to show. Fired on rank 0 only. Loggers may listen to this."""


@hookspec(firstresult=True)
def skip_logging() -> bool | None:
    """*Hot.* ``s.log``, ``s.log_dict`` or a similar verb runs. Return True to log nothing."""


@hookspec
def log_metrics(metrics: dict[str, Any], options: dict[str, Any]) -> None:
    """*Hot.* ``s.log`` or ``s.log_dict`` was called. ``metrics`` are as the user passed them, and
    ``options`` are the keyword arguments of the call.
    """


@hookspec
def monitored_name() -> str | None:
    """Which logged value does the plugin judge? Fired once, when the session starts.

    All ranks must return the same name.
    """


@hookspec
def optional_name() -> str | None:
    """Which monitored name may be missing without an error? Fired once, when the session starts.

    All ranks must return the same name.
    """


@hookspec
def monitored_value(name: str, value: float, is_first: bool) -> None:
    """A value that some plugin monitors is complete: at ``s.log``, or with ``on_epoch`` when the
    pass over the loader ends.

    The value is reduced over ranks, so it is equal on all ranks, and loggers get the same value.
    Fired on every rank. ``is_first`` is True if the loop logs this name for the first time after
    automatic values (see ``autolog``), which then no longer count.
    """


@hookspec
def metrics_ready(
    metrics: dict[str, float], step: int, epoch: int | None, prog_bar: frozenset[str]
) -> None:
    """A log point has been reached. Loggers listen to this.

    ``metrics`` are plain numbers by name, reduced over ranks where the call of ``s.log`` asked for
    it. ``step`` is the number of real optimizer steps to which they belong. ``epoch`` counts passes
    over the training loader from 0, and is None before the first pass. ``prog_bar`` are the names
    for a progress bar. Fired on every rank, on the loop's thread. The last log point comes after
    ``session_end``, so close files and connections on ``session.on_close``.
    """
