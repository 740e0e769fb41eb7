"""Rank 0 prints. With ``print_all_ranks=True`` every rank does, each line with its rank."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import traceback
from typing import IO, TYPE_CHECKING

from torchbus.errors import redacted
from torchbus.plugin import hookimpl

from torchbus_rank0.files import SharedFiles
from torchbus_rank0.libraries import follow_companions

if TYPE_CHECKING:
    from torchbus.plugin import Context


def say(text: str) -> None:
    """Print a line of the session on stderr, without secrets. Call it on rank 0."""
    print(f"torchbus: {redacted(text)}", file=sys.stderr, flush=True)


class Rank0Prints:
    def __init__(self, session: Context) -> None:
        self._session = session

    @hookimpl
    def session_start(self, session: Context) -> None:
        if session.options["print_all_ranks"]:
            stack = session.on_close
            stack.enter_context(contextlib.redirect_stdout(RankLines(sys.stdout, session.rank)))
            stack.enter_context(contextlib.redirect_stderr(RankLines(sys.stderr, session.rank)))
        elif not session.is_main:
            silence = session.on_close.enter_context(open(os.devnull, "w"))
            session.on_close.enter_context(contextlib.redirect_stdout(silence))
            session.on_close.enter_context(contextlib.redirect_stderr(silence))
            self._show_errors_of_threads()

    def _show_errors_of_threads(self) -> None:
        """Let rank 0 show the traceback if a thread of this rank, such as a prefetcher, fails.

        An error of the main thread ends the job, which shows it.
        """
        session, before = self._session, threading.excepthook

        def show(error: threading.ExceptHookArgs) -> None:
            before(error)
            if session.job is None or error.exc_value is None or error.exc_type is SystemExit:
                return
            name = "?" if error.thread is None else error.thread.name
            trace = "".join(traceback.format_exception(error.exc_value)).rstrip()
            lines = f"Exception in thread {name}:\n{trace}".splitlines()
            with contextlib.suppress(RuntimeError):  # the job has ended
                session.job.note("\n".join(f"[rank {session.rank}] {line}" for line in lines))

        threading.excepthook = show
        session.on_close.callback(setattr, threading, "excepthook", before)


class RankLines(io.TextIOBase):
    """A stream that writes whole lines, each with its rank in front."""

    def __init__(self, stream: IO[str], rank: int) -> None:
        self._stream = stream
        self._rank = rank
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        self._stream.write("".join(f"[rank {self._rank}] {line}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()


def always(session: Context) -> list[object]:
    """Return the plugins that let only rank 0 print and write, for a session of several ranks.

    In any session, this also activates the plugin of a library once the script imports the library.
    """
    follow_companions(session)
    if session.world_size == 1:
        return []
    return [Rank0Prints(session), SharedFiles(session)]
