"""The way into a session, and out of it."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING

from torchbus._builtin import standard_plugins
from torchbus._bus import arguments
from torchbus._session import active
from torchbus._session.notices import Mark
from torchbus.errors import UsageError

if TYPE_CHECKING:
    from torchbus._session.context import Context


class Block:
    """Each step in is undone on the way out, in the reverse order; what goes wrong in one part does not keep the others from running.

    ``has_begun``: ``session_start`` is sent, or was. ``runs``: the loop is inside.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        self._stack = ExitStack()
        self._used = False
        self.has_begun = False
        self.runs = False
        self._mark: Mark | None = None

    @property
    def frame(self) -> FrameType | None:
        """The caller's, while it runs."""
        return None if self._mark is None else self._mark.find()

    def enter(self, frame: FrameType) -> None:
        """``frame`` is the caller's. Raises UsageError where a session can't begin."""
        active.refuse_nesting()
        if self._used:
            raise UsageError("this session was used already: make a new one, session(...), for each block")
        self._used = True
        session = self._session
        self._mark = Mark(frame)
        with ExitStack() as stack:
            stack.callback(self._forget)
            active.set_current(session)
            arguments.refuse_missing_ranks(session, session.bus.hook.launch(session=session))
            stack.push(self._part_from_ranks)
            stack.push(session.on_close)
            stack.push(self._meet_ranks)
            for plugin in standard_plugins(session):
                session.bus.register(plugin)
            self.has_begun = True
            session.bus.hook.session_start(session=session)
            stack.callback(session.seams.close)
            session.seams.refresh()
            session.adopted.add_named_in(frame)
            self._stack = stack.pop_all()
            self.runs = True

    def leave(self, error: BaseException | None) -> None:
        session, stack, self._stack = self._session, self._stack, ExitStack()
        stack.push(lambda *_: session.bus.hook.session_end(session=session, error=error) and None)
        stack.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

    def leave_at_exit(self) -> None:
        self.leave(getattr(sys, "last_value", None))

    def let_go_in_fork(self) -> None:
        """In a process that the loop forks (a loader's worker, a pool's), which is no rank: there, torch is as it was.

        The ranks that ``launch="fork"`` makes come earlier, while the session is being entered.
        """
        if self.runs:
            self._session.seams.close()
            self._session.random.forget()
            if self._session.job is not None:
                self._session.job.guard.forget()
            active.set_current(None)

    def _forget(self) -> None:
        """A closed session holds on to nothing of the caller's."""
        self.runs = self.has_begun = False
        self._mark = None
        active.set_current(None)
        self._session.forget()

    def _meet_ranks(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Wait for the others at the end, or settle whose error it is."""
        if self._session.job is not None:
            final = self._session.job.meet(error)
            if final is not None and final is not error:
                raise final from None

    def _part_from_ranks(self, kind: object, error: BaseException | None, trace: object) -> None:
        job = self._session.job
        if job is not None:
            job.part(error)
            if job.ends_with_block:
                active.set_current(None)
                job.end_process(error)
