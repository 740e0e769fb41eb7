"""The logger "tensorboard", and one run for scripts that make a ``SummaryWriter`` themselves."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchbus.plugin import Context, expect, hookimpl

from torchbus_log.trackers.tracker import Tracker, new_folder
from torchbus_log.trackers.values import Histogram, Image

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLogger(Tracker):
    """Writes scalars, pictures and histograms for TensorBoard, on rank 0.

    ``experiment`` is the ``torch.utils.tensorboard.SummaryWriter``.

    Args:
        root: the folder in which each run gets a folder, named by date and time. If that folder
            exists, the name gets "-2", "-3" and so on.
        ranks, on_error, start_timeout_s, finish_timeout_s: as in ``torchbus_log``'s ``Tracker``.
            With ``ranks="all"`` each rank has a separate folder.
    """

    name = "tensorboard"

    def __init__(self, *, root: str | os.PathLike[str] = "runs", **policy: Any) -> None:
        super().__init__(**policy)
        expect("root", root, (str, os.PathLike), "a path")
        self._root = Path(root)

    def import_client(self) -> None:
        importlib.import_module("torch.utils.tensorboard")

    def needs_network(self) -> bool:
        return False

    def open_run(self, session: Context, config: dict[str, object], offline: bool) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        rank = f"-rank{session.rank}" if self._ranks == "all" else ""
        folder = new_folder(self._root, f"{time.strftime('%Y%m%d-%H%M%S')}{rank}")
        writer = SummaryWriter(str(folder))
        writer.add_text("torchbus", _as_text(config))
        return writer

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        with self._again_after_a_failure():
            for name, value in metrics.items():
                self.experiment.add_scalar(name, value, step)
            if epoch is not None:
                self.experiment.add_scalar("epoch", epoch, step)
            self.experiment.flush()

    def send_image(self, name: str, image: Image, step: int) -> None:
        with self._again_after_a_failure():
            self.experiment.add_image(name, image.pixels(), step, dataformats="HWC")

    def send_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        edges, counts = histogram.edges, histogram.counts
        with self._again_after_a_failure():
            self.experiment.add_histogram_raw(
                name,
                min=edges[0],
                max=edges[-1],
                num=int(sum(counts)),
                sum=histogram.sum,
                sum_squares=histogram.sum_squares,
                bucket_limits=edges[1:],
                bucket_counts=counts,
                global_step=step,
            )

    def send_hyperparameters(self, values: dict[str, Any]) -> None:
        with self._again_after_a_failure():
            self.experiment.add_text("hyperparameters", _as_text(values))

    def send_system(self, metrics: dict[str, float], time_s: float) -> None:
        with self._again_after_a_failure():
            for name, value in metrics.items():
                self.experiment.add_scalar(f"system/{name}", value, int(time_s))

    def close_run(self, run: SummaryWriter, failed: bool) -> None:
        run.close()

    def folder(self) -> str | os.PathLike[str]:
        return self._root

    @contextmanager
    def _again_after_a_failure(self) -> Iterator[None]:
        """After a failure, let the next call start another file in the same folder.

        A file writer that has failed once rejects all further calls.
        """
        try:
            yield
        except Exception:
            self.experiment.file_writer = self.experiment.all_writers = None
            raise


def _as_text(values: dict[str, Any]) -> str:
    """Return JSON as a code block in Markdown, which TensorBoard shows unchanged."""
    return "\n".join(f"    {line}" for line in json.dumps(values, indent=1).splitlines())


class SilentWriter:
    """A file writer that discards everything, for a ``SummaryWriter`` on ranks other than 0."""

    def __init__(self, logdir: str, *args: object, **kwargs: object) -> None:
        self._logdir = logdir

    def get_logdir(self) -> str:
        return self._logdir

    def add_event(self, event: object) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class OneWriter:
    """Silences the script's ``SummaryWriter`` on all ranks except rank 0.

    A script that has read its rank may want a writer on each rank, so its writers are not silenced.
    """

    @hookimpl
    def session_start(self, session: Context) -> None:
        from torch.utils.tensorboard import writer

        if session.is_main or TensorBoardLogger.has_all_ranks(session):
            return

        def made(original: Callable[..., Any]) -> Callable[..., Any]:
            def make(logdir: str, *args: object, **kwargs: object) -> Any:
                kind = original if session.rank_asked else SilentWriter
                return kind(logdir, *args, **kwargs)

            return make

        session.replace(writer, "EventFileWriter", made)

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]] | None:
        if session.world_size == 1 or TensorBoardLogger.has_all_ranks(session):
            return None
        return {"loggers": ["tensorboard: of the script's own writers, rank 0's write"]}


def before_the_block() -> None:
    """Silence writers that a launched rank makes before the block."""
    from torch.utils.tensorboard import writer

    writer.EventFileWriter = SilentWriter  # type: ignore[misc]
