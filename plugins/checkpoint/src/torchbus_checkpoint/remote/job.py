"""What rank 0 does for a job whose checkpoints are in a store, from its start to its end."""

from __future__ import annotations

import contextlib
from types import TracebackType

from torchbus.plugin import Context

from torchbus_checkpoint.disk import choice
from torchbus_checkpoint.options import Options
from torchbus_checkpoint.remote import fetch, mirror
from torchbus_checkpoint.remote.claim import Claim
from torchbus_checkpoint.remote.store import Store, StoreError

PATIENCE_AFTER_ERROR_S = 5.0


class RemoteJob:
    """Fetches the newest checkpoint, and sends new ones. The job has locked the local folder.

    Raises CheckpointError if the job can't start.
    """

    def __init__(self, session: Context, options: Options) -> None:
        assert options.url is not None and options.folder is not None
        self._session = session
        store = Store(options.url)
        self._claim = Claim(store)
        session.on_close.callback(self._release)
        fetch.newest(store, self._claim, options.folder, options.resume == "auto")

        def kept(there: dict[str, float | None]) -> set[str]:
            return choice.kept(there, options.keep, options.monitor is not None, options.mode)

        self.mirror = mirror.Mirror(store, self._claim, options.folder, kept)
        self.mirror.start()
        session.on_close.push(self._close)

    def _close(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Runs after the ranks have met, so only rank 0 waits."""
        if isinstance(error, Exception):
            return self.mirror.close(PATIENCE_AFTER_ERROR_S, PATIENCE_AFTER_ERROR_S)
        self.mirror.close(self._session.timeout.total_seconds(), mirror.PATIENCE_S)

    def _release(self) -> None:
        """Remove the note of a job that could not start."""
        with contextlib.suppress(StoreError):
            if not hasattr(self, "mirror"):
                self._claim.release()
