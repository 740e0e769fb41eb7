"""The logger "aim": one Aim run for all ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torchbus.plugin import Context, expect

from torchbus_log.trackers.values import Histogram, Image
from torchbus_trackers.one_run import RunOfProject

if TYPE_CHECKING:
    from aim import Run

QUIET = {
    "system_tracking_interval": None,
    "log_system_params": False,
    "capture_terminal_logs": False,
}
"""Options that stop Aim from capturing the process: it would store the environment unredacted."""


class AimLogger(RunOfProject):
    """One Aim run for all ranks, which rank 0 writes.

    ``experiment`` is the ``aim.Run``.

    Args:
        repo: a folder, whose ``.aim`` contains the runs, or the address of a server ("aim://...").
        project: the name of the Aim experiment.
        offline: write to ``.aim`` in the current folder instead of a server.
        resume: the hash of a run.
        options: further arguments of ``aim.Run``.
        name, on_error, start_timeout_s, finish_timeout_s: as in ``OneRun``.

    Source: https://aimstack.readthedocs.io/en/latest/refs/sdk.html
    """

    name = "aim"
    module = "aim"
    passed: ClassVar = {"run_hash": "resume="}

    def __init__(self, *, repo: str | os.PathLike[str] = ".", **common: Any) -> None:
        super().__init__(**common)
        expect("repo", repo, (str, os.PathLike), "a path or an address")
        self._repo = os.fspath(repo)

    def needs_network(self) -> bool:
        return not self._offline and "://" in self._repo

    def open_run(self, session: Context, config: dict[str, Any], offline: bool) -> Run:
        from aim import Run

        separate = offline or self._offline
        repo = "." if separate and "://" in self._repo else self._repo
        resume = None if offline else self._resume
        run = Run(resume, **{"repo": repo, "experiment": self._project, **QUIET, **self._options})
        if self._name is not None:
            run.name = self._name
        run["torchbus"] = config
        return run

    def id_of(self, run: Run) -> str:
        return str(run.hash)

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        for name, value in metrics.items():
            self.experiment.track(value, name=name, step=step, epoch=epoch)

    def send_image(self, name: str, image: Image, step: int) -> None:
        from aim import Image as Picture

        self.experiment.track(Picture(image.rgb().numpy()), name=name, step=step)

    def send_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        from aim import Distribution

        ends = (histogram.edges[0], histogram.edges[-1])
        self.experiment.track(
            Distribution(hist=histogram.counts, bin_range=ends), name=name, step=step
        )

    def send_hyperparameters(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.experiment["hyperparameters", name] = value

    def close_run(self, run: Run, failed: bool) -> None:
        run["torchbus", "failed"] = failed
        run.close()

    def folder(self) -> Path | None:
        return None if "://" in self._repo else Path(self._repo)
