"""The logger "swanlab": one SwanLab run for all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torchbus.plugin import Context

from torchbus_log.trackers.values import Image
from torchbus_trackers.one_run import RunOfProject

if TYPE_CHECKING:
    from swanlab import Run

QUIET = {
    "interactive": False,
    "terminal": {"proxy_type": "none"},
    "probe": {"runtime": False, "monitor": False},
}
"""Settings that stop SwanLab from prompting, copying output and storing the command line."""


class SwanLabLogger(RunOfProject):
    """One SwanLab run for all ranks, which rank 0 writes.

    ``experiment`` is the ``swanlab.Run``.

    Args:
        project: the SwanLab project; None: the name of the current folder.
        offline: write files for ``swanlab sync``.
        resume: the id of a run. SwanLab resumes online only.
        options: further arguments of ``swanlab.init``, such as ``workspace`` and ``settings``.
        name, on_error, start_timeout_s, finish_timeout_s: as in ``OneRun``.

    Source: https://docs.swanlab.cn/en/api/py-init.html
    """

    name = "swanlab"
    module = "swanlab"
    passed: ClassVar = {"config": "s.log_hyperparams(...)"}

    def open_run(self, session: Context, config: dict[str, Any], offline: bool) -> Run:
        import swanlab

        again = self._resume is not None and not offline
        given = {
            "project": self._project,
            "name": self._name,
            "mode": "offline" if offline or self._offline else None,
            "id": self._resume if again else None,
            "resume": "must" if again else None,
            "settings": swanlab.Settings(**QUIET),
            **self._options,
        }
        return swanlab.init(config={"torchbus": config}, **given)

    def id_of(self, run: Run) -> str:
        return str(run.id)

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        values = {**metrics, **({} if epoch is None else {"epoch": epoch})}
        self.experiment.log(values, step=step)

    def send_image(self, name: str, image: Image, step: int) -> None:
        """Send a picture. It needs pillow."""
        import swanlab

        self.experiment.log({name: swanlab.Image(image.rgb().numpy())}, step=step)

    def send_hyperparameters(self, values: dict[str, Any]) -> None:
        self.experiment.config.update({"hyperparameters": values})

    def close_run(self, run: Run, failed: bool) -> None:
        if failed:
            run.finish("crashed", "an exception left the session")
        else:
            run.finish()
