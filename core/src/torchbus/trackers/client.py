"""The methods that the author of a logger writes: how to start, feed and close its client."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchbus._session.context import Context
    from torchbus.trackers.histogram import Histogram
    from torchbus.trackers.image import Image


class Client:
    """The interface to a tracker's client.

    The calls that open, feed and close a run are made on the tracker's thread, one at a time.
    """

    def import_client(self) -> None:
        """Import the client.

        It runs on the loop's thread without a time limit, so that a cold disk fails no start.
        """

    def needs_network(self) -> bool:
        """Return False if the run consists of local files only.

        Its start then has no time limit, and is tried once.
        """
        return True

    def open_run(self, session: Context, config: dict[str, object], offline: bool) -> Any:
        """Start the run with the session's description ``config``, and return it.

        ``offline``: the first start failed, so use only local files. Let the client's errors pass.
        """
        raise NotImplementedError

    def send_metrics(self, metrics: dict[str, float], step: int, epoch: int | None) -> None:
        """Send the arguments of ``metrics_ready``."""
        raise NotImplementedError

    def send_hyperparameters(self, values: dict[str, object]) -> None:
        """Send the arguments of ``s.log_hyperparams``, as plain JSON."""

    def send_image(self, name: str, image: Image, step: int) -> None:
        """Send a picture of ``s.log_image``. Its ``pixels()`` are on the host already."""

    def send_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        """Send a histogram of ``s.log_histogram``."""

    def send_system(self, metrics: dict[str, float], time_s: float) -> None:
        """Send the arguments of ``system_metrics``."""

    def close_run(self, run: Any, failed: bool) -> None:
        """End the run that ``open_run`` returned; ``failed``: an exception leaves the block."""

    def folder(self) -> str | os.PathLike[str] | None:
        """Return the local folder that the client writes to, or None.

        While its disk is full, the tracker skips calls and counts them as failed.
        """
        return None

    def secrets(self) -> list[str | None]:
        """Return values that must not appear in any message."""
        return []
