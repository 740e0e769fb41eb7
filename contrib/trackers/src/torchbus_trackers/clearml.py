"""The logger "clearml": one ClearML task for all ranks."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torchbus.plugin import Context

from torchbus_log.trackers.values import Histogram, Image
from torchbus_trackers.one_run import RunOfProject

if TYPE_CHECKING:
    from clearml import Task

QUIET = {
    "auto_connect_arg_parser": False,
    "auto_connect_frameworks": False,
    "auto_connect_streams": False,
    "auto_resource_monitoring": False,
}
"""Options that stop ClearML from patching frameworks, and from storing the command line."""


class ClearMLLogger(RunOfProject):
    """One ClearML task for all ranks, which rank 0 writes.

    ``experiment`` is the ``clearml.Task``.

    Args:
        project: the ClearML project; None: "torchbus".
        name: the task's name; None: "run".
        offline: write an archive for ``Task.import_offline_session``.
        resume: the id of a task.
        options: further arguments of ``Task.init``.
        on_error, start_timeout_s, finish_timeout_s: as in ``OneRun``.

    Source: https://clear.ml/docs/latest/docs/references/sdk/task
    """

    name = "clearml"
    module = "clearml"

    def open_run(self, session: Context, config: dict[str, Any], offline: bool) -> Task:
        from clearml import Task

        if offline or self._offline:
            Task.set_offline(True)
        again = {"reuse_last_task_id": self._resume, "continue_last_task": 0}
        which = {"reuse_last_task_id": False} if self._resume is None or offline else again
        given = {
            "project_name": self._project or "torchbus",
            "task_name": self._name or "run",
            **which,
            **QUIET,
            **self._options,
        }
        run = Task.init(**given)
        run.set_configuration_object("torchbus", config_dict=config)
        return run

    def id_of(self, run: Task) -> str:
        return str(run.id)

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        logger = self.experiment.get_logger()
        values = {**metrics, **({} if epoch is None else {"epoch": float(epoch)})}
        for name, value in values.items():
            logger.report_scalar(name, name, iteration=step, value=value)

    def send_image(self, name: str, image: Image, step: int) -> None:
        """Send a picture. It needs pillow."""
        logger = self.experiment.get_logger()
        logger.report_image(name, name, iteration=step, image=image.rgb().numpy())

    def send_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        """Send a histogram. The bins are labelled with their lower edges."""
        labels = [f"{edge:.6g}" for edge in histogram.edges[:-1]]
        logger = self.experiment.get_logger()
        logger.report_histogram(name, name, histogram.counts, iteration=step, xlabels=labels)

    def send_hyperparameters(self, values: dict[str, Any]) -> None:
        self.experiment.connect(values, name="hyperparameters")

    def close_run(self, run: Task, failed: bool) -> None:
        if failed and not run.is_offline():
            run.mark_failed(status_reason="an exception left the session")
        run.close()
        if run.is_offline():
            with suppress(Exception):  # without an account it raises at its end
                run.set_offline(False)
