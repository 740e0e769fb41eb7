"""The logger "trackio": one Trackio run for all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchbus.plugin import Context

from torchbus_log.trackers.values import Histogram, Image
from torchbus_trackers.one_run import RunOfProject

if TYPE_CHECKING:
    from trackio.run import Run

REMOTE = ("space_id", "server_url")


class TrackioLogger(RunOfProject):
    """One Trackio run for all ranks, which rank 0 writes.

    ``experiment`` is the ``trackio.Run``.

    Args:
        project: the Trackio project; None: "torchbus".
        offline: ignore the Space or server in ``options``.
        resume: the name of a run in the project.
        options: further arguments of ``trackio.init``, such as ``space_id``.
        name, on_error, start_timeout_s, finish_timeout_s: as in ``OneRun``.

    Source: https://huggingface.co/docs/trackio
    """

    name = "trackio"
    module = "trackio"
    secret_options = ("server_url", "webhook_url")

    def needs_network(self) -> bool:
        return not self._offline and any(self._options.get(option) for option in REMOTE)

    def open_run(self, session: Context, config: dict[str, Any], offline: bool) -> Run:
        import trackio

        given = {
            "project": self._project or "torchbus",
            "name": self._resume or self._name,
            "resume": "never" if self._resume is None else "allow" if offline else "must",
            "config": {"torchbus": config},
            "embed": False,
            "auto_log_gpu": False,
            "auto_log_cpu": False,
            **self._options,
        }
        separate = offline or self._offline
        return trackio.init(
            **{key: given[key] for key in given if not (separate and key in REMOTE)}
        )

    def id_of(self, run: Run) -> str:
        return str(run.name)

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        values = {**metrics, **({} if epoch is None else {"epoch": epoch})}
        self.experiment.log(values, step=step)

    def send_image(self, name: str, image: Image, step: int) -> None:
        """Send a picture in RGB. It needs pillow."""
        import trackio

        self.experiment.log({name: trackio.Image(image.rgb().numpy())}, step=step)

    def send_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        import trackio

        counted = trackio.Histogram(np_histogram=(histogram.counts, histogram.edges))
        self.experiment.log({name: counted}, step=step)

    def send_hyperparameters(self, values: dict[str, Any]) -> None:
        self.experiment.config.update({"hyperparameters": values})

    def send_system(self, metrics: dict[str, float], time_s: float) -> None:
        self.experiment.log_system({**metrics, "time_s": time_s})

    def close_run(self, run: Run, failed: bool) -> None:
        run.finish()
