"""The logger "comet": one Comet experiment for all ranks."""

from __future__ import annotations

from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from torchbus.plugin import Context

from torchbus_log.trackers.values import Histogram, Image
from torchbus_trackers.one_run import RunOfProject

if TYPE_CHECKING:
    from comet_ml import CometExperiment

QUIET = {
    "log_code": False,
    "log_env_details": False,
    "log_git_patch": False,
    "parse_args": False,
    "auto_output_logging": False,
    "auto_param_logging": False,
    "auto_metric_logging": False,
    "display_summary_level": 0,
}
"""Options that stop comet_ml from capturing the script: it would store the command line as is."""


class CometLogger(RunOfProject):
    """One Comet experiment for all ranks, which rank 0 writes.

    ``experiment`` is the ``comet_ml.CometExperiment``.

    Args:
        project: the Comet project; None: comet_ml's default.
        offline: write an archive for ``comet upload``.
        resume: the key of an experiment.
        options: further arguments of ``comet_ml.start``, such as ``api_key``, ``workspace`` and
            ``experiment_config``.
        name, on_error, start_timeout_s, finish_timeout_s: as in ``OneRun``.

    Source: https://www.comet.com/docs/v2/api-and-sdk/python-sdk/reference/start/
    """

    name = "comet"
    module = "comet_ml"
    passed: ClassVar = {"online": "offline="}

    def open_run(self, session: Context, config: dict[str, Any], offline: bool) -> CometExperiment:
        import comet_ml

        given = {
            "project_name": self._project,
            "experiment_key": self._resume,
            "mode": "create" if self._resume is None else "get",
            "experiment_config": comet_ml.ExperimentConfig(name=self._name, **QUIET),
            **self._options,
        }
        run = comet_ml.start(online=not (offline or self._offline), **given)
        run.log_parameters(config, prefix="torchbus")
        return run

    def id_of(self, run: CometExperiment) -> str:
        return str(run.get_key())

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        self.experiment.log_metrics(metrics, step=step, epoch=epoch)

    def send_image(self, name: str, image: Image, step: int) -> None:
        """Send a picture. Raises RuntimeError if comet_ml rejects it; comet_ml only logs why."""
        if self.experiment.log_image(BytesIO(image.png()), name=name, step=step) is None:
            raise RuntimeError(f"comet_ml did not accept the picture {name!r}")

    def send_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        """Send a histogram. Comet makes other bins, in which each of ours counts at its middle."""
        from comet_ml.data_structure import Histogram as CometHistogram

        edges = histogram.edges
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        counted = CometHistogram()
        counted.add(middles, counts=histogram.counts)
        self.experiment.log_histogram_3d(counted, name=name, step=step)

    def send_hyperparameters(self, values: dict[str, Any]) -> None:
        self.experiment.log_parameters(values)

    def close_run(self, run: CometExperiment, failed: bool) -> None:
        run.log_other("torchbus.failed", failed)
        run.end()
