"""The way into a session, and out of it."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING

from torchbus._bus import discovery
from torchbus._session import active
from torchbus._session.notices import Mark
from torchbus.errors import UsageError

if TYPE_CHECKING:
    from torchbus._ranks.world import World
    from torchbus._session.context import Context


class Block:
    """Enters and leaves a session.

    Leaving undoes each step of entering, in reverse order. An error in one part does not keep the
    others from running. ``has_begun``: ``session_start`` was sent. ``runs``: the loop is inside.
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
        """The caller's frame, while it runs."""
        return None if self._mark is None else self._mark.find()

    def enter(self, frame: FrameType) -> None:
        """Enter from the caller's ``frame``. Raises UsageError if a session can't begin here."""
        active.refuse_nesting()
        if self._used:
            raise UsageError(
                "this session was used already: make a new one, session(...), for each block"
            )
        self._used = True
        session = self._session
        self._mark = Mark(frame)
        with ExitStack() as stack:
            stack.callback(self._forget)
            active.set_current(session)
            refuse_missing_ranks(session, session.bus.hook.launch(session=session))
            stack.push(self._part_from_ranks)
            stack.push(session.on_close)
            stack.push(self._meet_ranks)
            for entry in discovery.every("always"):
                for plugin in discovery.load(entry)(session):
                    session.bus.register(plugin)
            self.has_begun = True
            session.bus.hook.session_start(session=session)
            stack.callback(session.seams.close)
            session.adopted.add_named_in(frame)
            session.seams.refresh()
            self._stack = stack.pop_all()
            self.runs = True

    def leave(self, error: BaseException | None) -> None:
        session, stack, self._stack = self._session, self._stack, ExitStack()
        stack.push(lambda *_: session.bus.hook.session_end(session=session, error=error) and None)
        stack.__exit__(
            type(error) if error else None, error, error.__traceback__ if error else None
        )

    def leave_at_exit(self) -> None:
        self.leave(getattr(sys, "last_value", None))

    def let_go_in_fork(self) -> None:
        """Put torch back in a process that the loop forks, such as a loader's worker: it is no
        rank.

        ``launch="fork"`` forks its ranks earlier, while the session is being entered.
        """
        if self.runs:
            self._session.seams.close()
            if "random" in vars(self._session):
                self._session.random.forget()
            if self._session.job is not None:
                self._session.job.guard.forget()
            active.set_current(None)

    def _forget(self) -> None:
        """Let go of everything of the caller's."""
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


def refuse_missing_ranks(session: Context, answer: World | None) -> None:
    """Raise UsageError if the session should have several ranks and has not got them.

    The call asks for them, or a launcher has started them, or ``answer`` does: what the strategy
    returned for ``launch``.
    """
    asked, strategy = (
        max(session.ranks_asked_for, 1 if answer is None else answer.world_size),
        session.options["strategy"],
    )
    if session.world_size > 1 or asked == 1:
        return
    remedy = (
        "leave strategy out"
        if strategy is None
        else "its listener to `launch` returns session.start_ranks()"
    )
    name = strategy if isinstance(strategy, str | None) else type(strategy).__name__
    raise UsageError(
        f"{asked} ranks are asked for, and strategy={name!r} starts and joins none: {remedy}"
    )
