"""Base classes of this package's loggers: rank 0 writes one run for all ranks, by a client."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, ClassVar

from torchbus.plugin import UsageError, expect

from torchbus_log.trackers.tracker import Tracker, refuse_passed


class OneRun(Tracker):
    """A run that rank 0 writes for all ranks, with the client in ``module``.

    accelerate.tracking has classes for the same clients. This package calls the clients directly:
    those classes read accelerate's process-wide state in each call, use the client's process-wide
    "active run", and can neither resume a run nor continue offline.

    Args:
        name: the run's name; None: the client chooses one.
        resume: the ``run_id`` of a run to continue; None: a new run.
        offline: use only local files.
        options: further keyword arguments of the client's start function. They take precedence over
            those that the logger sets.
        on_error, start_timeout_s, finish_timeout_s: as in ``torchbus_log``'s ``Tracker``.

    Raises:
        UsageError: the client is not installed, an option has another type or value, or
            ``options`` has an argument that the logger itself gives to the client.
    """

    module: ClassVar[str]
    """The name by which the client is imported."""

    secret_options: ClassVar[tuple[str, ...]] = ("api_key",)
    """The client's options whose values must not appear in messages."""

    passed: ClassVar[Mapping[str, str]] = {}
    """Arguments of the client that ``options`` can't replace, and what to write instead."""

    def __init__(
        self,
        *,
        name: str | None = None,
        resume: str | None = None,
        offline: bool = False,
        options: Mapping[str, Any] | None = None,
        on_error: str = "warn",
        start_timeout_s: float = 30.0,
        finish_timeout_s: float = 60.0,
    ) -> None:
        super().__init__(
            on_error=on_error, start_timeout_s=start_timeout_s, finish_timeout_s=finish_timeout_s
        )
        refuse_missing(self.name, self.module)
        expect("name", name, (str, type(None)), "a text")
        expect("resume", resume, (str, type(None)), "the run_id of an earlier run")
        expect("offline", offline, bool, "True or False")
        expect("options", options, (Mapping, type(None)), "a dict")
        refuse_passed(self, options or {}, self.passed)
        self._name = name
        self._resume = resume
        self._offline = offline
        self._options: dict[str, Any] = dict(options or {})

    @property
    def run_id(self) -> str:
        """The value of ``resume=`` that continues this run, or "" on ranks that don't report."""
        return self.id_of(self.experiment) if self.experiment else ""

    def id_of(self, run: Any) -> str:
        """Return the client's id of a run. A subclass defines it."""
        raise NotImplementedError

    def import_client(self) -> None:
        """Import the client, and restore the standard streams, which some clients replace."""
        streams = sys.stdout, sys.stderr
        importlib.import_module(self.module)
        sys.stdout, sys.stderr = streams

    def needs_network(self) -> bool:
        return not self._offline

    def send_system(self, metrics: dict[str, float], time_s: float) -> None:
        """Send measurements as metrics "system/<name>". The step is the second of the session."""
        named = {f"system/{name}": value for name, value in metrics.items()}
        self.send_metrics(named, int(time_s), None)

    def secrets(self) -> list[str | None]:
        return [str(self._options[key]) for key in self.secret_options if key in self._options]


class RunOfProject(OneRun):
    """A ``OneRun`` in a project.

    Args:
        project: the project's name; None: the client's default, or "torchbus".
        common: the arguments of ``OneRun``.
    """

    def __init__(self, *, project: str | None = None, **common: Any) -> None:
        super().__init__(**common)
        expect("project", project, (str, type(None)), "a text")
        self._project = project


def refuse_missing(name: str, module: str) -> None:
    """Raise UsageError, before any rank starts, if a client is not installed."""
    if find_spec(module) is None:
        raise UsageError(
            f"logger {name!r} needs the package {module}, which is not installed:"
            f' pip install "torchbus-trackers[{name}]"'
        )


def flat(values: Mapping[str, object], between: str = ".") -> dict[str, object]:
    """Return the values of nested dicts by their joined names, as in ``{"net.width": 64}``."""
    return dict(_items(values, between, ""))


def _items(values: Mapping[str, object], between: str, before: str) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and value:
            yield from _items(value, between, f"{name}{between}")
        else:
            yield name, value
