"""The logger "mlflow": one MLflow run for all ranks."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from torchbus.plugin import Context, UsageError, expect

from torchbus_log.trackers.tracker import NullObject, new_run_name
from torchbus_log.trackers.values import Image
from torchbus_trackers.one_run import RunOfProject, flat

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

OFFLINE_STORE = "sqlite:///mlflow-offline.db"
LONGEST_TEXT = 5000
PORTS = {"http": 80, "https": 443}
CONNECT_S = 5.0
"""How long a server may take to accept a connection."""
PARAMETERS_AT_ONCE, METRICS_AT_ONCE = 100, 1000
Item = TypeVar("Item")


class MLflowLogger(RunOfProject):
    """One MLflow run for all ranks, which rank 0 writes.

    ``experiment`` is the ``mlflow.entities.Run``, and ``client`` the ``MlflowClient`` that writes
    it. The run is not the process's "active run", so the script's calls of ``mlflow.log_metric``
    write to another run.

    Args:
        tracking_uri: the server or the store; None: MLflow's default (``MLFLOW_TRACKING_URI``, or
            a local file).
        project: the name of the MLflow experiment; None: MLflow's default experiment.
        offline: write to ``mlflow-offline.db``, as if the server did not answer.
        name, resume, options, on_error, start_timeout_s, finish_timeout_s: as in ``OneRun``;
            ``options`` are those of ``MlflowClient.create_run``.

    MLflow accepts a parameter once. A later value becomes the tag ``later.<name>``.

    Source: https://mlflow.org/docs/latest/api_reference/python_api/mlflow.client.html
    """

    name = "mlflow"
    module = "mlflow"
    passed: ClassVar = {"experiment_id": "project=, the name of the experiment"}

    def __init__(self, *, tracking_uri: str | None = None, **common: Any) -> None:
        super().__init__(**common)
        expect("tracking_uri", tracking_uri, (str, type(None)), "a text")
        self._uri = tracking_uri
        self._parameters: dict[str, str] = {}
        self.client: Any = NullObject()

    def needs_network(self) -> bool:
        from mlflow import get_tracking_uri

        local = ("sqlite:", "file:", "/", ".")
        return not self._offline and not (self._uri or get_tracking_uri()).startswith(local)

    def address(self) -> str:
        """Return the server's address without a user's name and password."""
        import mlflow

        parts = urlsplit(self._uri or mlflow.get_tracking_uri())
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))

    def open_run(self, session: Context, config: dict[str, Any], offline: bool) -> Run:
        if self.needs_network() and not offline:
            self._reach()
        client = self._client(OFFLINE_STORE if offline or self._offline else self._uri)
        run = self._new(client) if self._resume is None or offline else self._old(client)
        for name, value in flat(config).items():
            client.set_tag(run.info.run_id, _name(f"torchbus.{name}"), str(value)[:LONGEST_TEXT])
        self._parameters = dict(run.data.params)
        self.client = client
        return run

    def id_of(self, run: Run) -> str:
        return str(run.info.run_id)

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        values = {**metrics, **({} if epoch is None else {"epoch": float(epoch)})}
        every = [Metric(_name(name), value, now_ms, step) for name, value in values.items()]
        for part in _parts(every, METRICS_AT_ONCE):
            self.client.log_batch(self.run_id, metrics=part)

    def send_image(self, name: str, image: Image, step: int) -> None:
        """Send a picture. It needs pillow."""
        pixels = image.pixels().numpy()
        self.client.log_image(self.run_id, pixels, key=_name(name), step=step, synchronous=True)

    def send_hyperparameters(self, values: dict[str, Any]) -> None:
        from mlflow.entities import Param, RunTag

        texts = {_name(key): str(value)[:LONGEST_TEXT] for key, value in flat(values).items()}
        known = self._parameters
        new = [Param(key, value) for key, value in texts.items() if key not in known]
        later = {key: value for key, value in texts.items() if known.get(key, value) != value}
        for part in _parts(new, PARAMETERS_AT_ONCE):
            self.client.log_batch(self.run_id, params=part)
        for tags in _parts([RunTag(f"later.{key}", value) for key, value in later.items()], 100):
            self.client.log_batch(self.run_id, tags=tags)
        self._parameters = {**texts, **known}

    def close_run(self, run: Run, failed: bool) -> None:
        self.client.set_terminated(run.info.run_id, "FAILED" if failed else "FINISHED")

    def _reach(self) -> None:
        """Raise ConnectionError if no server listens, because MLflow would try for minutes."""
        parts = urlsplit(self.address())
        if parts.scheme not in PORTS or not parts.hostname or proxied(parts.scheme, parts.hostname):
            return
        place = parts.hostname, parts.port or PORTS[parts.scheme]
        try:
            socket.create_connection(place, min(CONNECT_S, self._start_timeout_s)).close()
        except OSError as error:
            raise ConnectionError(
                f"the server at {self.address()} does not answer: {error}. Start it by `mlflow"
                " server`, or correct tracking_uri="
            ) from None

    def _client(self, uri: str | None) -> MlflowClient:
        """Return the client. Raises UsageError for an invalid URI, without a request."""
        import mlflow
        from mlflow.exceptions import MlflowException

        shown = "MLFLOW_TRACKING_URI" if uri is None else f"tracking_uri={uri!r}"
        address = urlsplit(uri or mlflow.get_tracking_uri())
        if address.scheme in ("http", "https") and not address.hostname:
            raise UsageError(f"mlflow: {shown} is rejected: it has no host, as in http://HOST:5000")
        try:
            return mlflow.MlflowClient(uri)
        except Exception as error:
            # by name, because mlflow-skinny lacks SQLAlchemy; other errors may be a database down
            is_wrong = type(error).__name__ in ("ArgumentError", "NoSuchModuleError")
            if not is_wrong and not isinstance(error, MlflowException | ImportError):
                raise
            raise UsageError(f"mlflow: {shown} is rejected: {error}") from None

    def _new(self, client: MlflowClient) -> Run:
        number = "0"
        if self._project is not None:
            found = client.get_experiment_by_name(self._project)
            number = found.experiment_id if found else client.create_experiment(self._project)
        name = self._name or new_run_name()  # MLflow draws its names from the seeded generator
        return client.create_run(number, **{"run_name": name, **self._options})

    def _old(self, client: MlflowClient) -> Run:
        client.update_run(str(self._resume), status="RUNNING")
        return client.get_run(str(self._resume))


def proxied(scheme: str, host: str) -> bool:
    """Whether requests to a host go through a proxy."""
    return scheme in getproxies() and not proxy_bypass(host)


def _name(name: str) -> str:
    """Replace the characters that MLflow rejects in a name by "_"."""
    return re.sub(r"[^\w\-. /]", "_", name)[:250]


def _parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
