"""The logger "dvclive": the files of DVCLive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torchbus.plugin import Context, expect

from torchbus_log.trackers.values import Image
from torchbus_trackers.one_run import OneRun

if TYPE_CHECKING:
    from dvclive import Live


class DVCLiveLogger(OneRun):
    """Writes the files of DVCLive, on rank 0.

    ``experiment`` is the ``dvclive.Live``.

    Args:
        root: the folder of the files.
        name: the name of the DVC experiment.
        resume: the ``root`` of a run to continue.
        options: further arguments of ``dvclive.Live``. Its default ``save_dvc_exp=True`` makes a
            DVC experiment of the Git repository when the session ends.
        on_error, finish_timeout_s: as in ``torchbus_log.trackers.tracker.Tracker``.

    Source: https://dvc.org/doc/dvclive/live
    """

    name = "dvclive"
    module = "dvclive"
    passed: ClassVar = {"dir": "root="}

    def __init__(self, *, root: str | os.PathLike[str] = "dvclive", **common: Any) -> None:
        super().__init__(**common)
        expect("root", root, (str, os.PathLike), "a path")
        self._root = Path(root if self._resume is None else self._resume)

    def needs_network(self) -> bool:
        return False

    def open_run(self, session: Context, config: dict[str, Any], offline: bool) -> Live:
        from dvclive import Live

        given = {"exp_name": self._name, "resume": self._resume is not None, **self._options}
        run = Live(str(self._root), **given)
        run.log_params({"torchbus": config})
        return run

    def id_of(self, run: Live) -> str:
        return str(run.dir)

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        run = self.experiment
        run.step = step
        values = {**metrics, **({} if epoch is None else {"epoch": epoch})}
        for name, value in values.items():
            run.log_metric(name, value)
        run.make_summary()

    def send_image(self, name: str, image: Image, step: int) -> None:
        """Write a picture to a file for each step, as DVCLive stores one per name. Needs pillow."""
        self.experiment.log_image(f"{name}/{step}.png", image.rgb().numpy())

    def send_hyperparameters(self, values: dict[str, Any]) -> None:
        self.experiment.log_params(values)

    def send_system(self, metrics: dict[str, float], time_s: float) -> None:
        """Store only the last measurements, because DVCLive's only axis is the steps."""
        for name, value in metrics.items():
            self.experiment.log_metric(f"system/{name}", value, plot=False)

    def close_run(self, run: Live, failed: bool) -> None:
        run.end()

    def folder(self) -> Path:
        return self._root
