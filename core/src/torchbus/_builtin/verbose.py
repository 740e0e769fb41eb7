"""``verbose=True``: explain() at the end of the first epoch."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torchbus._bus.markers import hookimpl

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from torchbus._session.context import Context


class ExplainFirstEpoch:
    """Prints when the first epoch ends, evaluation included.

    The epoch ends when a loader that fed it is iterated anew, or another one is exhausted, or at
    the latest when the session ends.
    """

    hears_trials = False

    def __init__(self, session: Context) -> None:
        self._session = session
        self._trained = False
        self._printed = False
        self._exhausted: weakref.ref[DataLoader[object]] | None = None

    @hookimpl
    def after_backward(self) -> None:
        self._trained = True

    @hookimpl
    def loader_start(self, loader: DataLoader[object]) -> None:
        if self._exhausted is not None and self._exhausted() is loader:
            self._print()

    @hookimpl
    def loader_end(self, loader: DataLoader[object]) -> None:
        if self._exhausted is not None:
            self._print()
        elif self._trained:
            self._exhausted = weakref.ref(loader)

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        if error is None:
            self._print()

    def _print(self) -> None:
        if not self._printed and self._session.is_main:
            print(self._session.user.explain())
        self._printed = True
