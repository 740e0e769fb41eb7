"""The plugin that explains the session at the first backward, and ends the script there."""

from __future__ import annotations

from torchbus.plugin import Context, hookimpl

from torchbus_advise.explain.by_hand import parts

NAME = "advise.explainer"


class Explainer:
    """On every rank the script ends as if it had called ``sys.exit()``; rank 0 prints."""

    def __init__(self) -> None:
        self._session: Context | None = None
        self.has_explained = False

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session

    @hookimpl(tryfirst=True)
    def before_backward(self) -> None:
        assert self._session is not None
        if self._session.is_main:
            print(self._session.user.explain())
            names = [name for name, _ in self._session.bus.plugins()]
            print(parts(names, self._session.world_size))
        self.has_explained = True
        raise SystemExit
