"""Where a rank's loop is: its line, and what it waits for."""

from __future__ import annotations

import linecache
import os
import weakref
from dataclasses import dataclass

from torch.nn import Module
from torchbus.compat import loaders
from torchbus.runtime.user_code import LIBRARIES, is_inside

from torchbus_launch import threads
from torchbus_launch.compat import OPERATORS, batches_come
from torchbus_launch.stall import is_stopped
from torchbus_launch.threads import Call

END = "the end of the session"
DEVICE = "a collective on its device"
"""Where a rank with an accelerator may wait: its calls begin collectives, and return at once."""
LOOKS, BLIND = "looks at the store", "of an accelerator"
"""Marks of rest for a rank whose innermost call does not show what it waits for."""
SESSION = ("torchbus.session", "torchbus.world")  # modules that define the session's methods
DATA = "torch.utils.data.dataloader"


@dataclass(frozen=True)
class RankPosition:
    """Where a rank is, as its guard reports it.

    Args:
        waits_in: the synchronisation in which it waits ("backward 41", "s.barrier"), or "".
        line: the line of the loop, as in "train.py:57".
        source: the text of that line.
        backwards: how many synchronised backwards it has made.
        note: what else is known.
        idle_mark: a mark of rest that stays equal while the rank can't continue; "" if it may.
        call: the innermost call, and its line.
        begun: how many collectives of the main process group it has begun; None if unknown.
    """

    rank: int
    waits_in: str
    line: str
    source: str
    backwards: int
    note: str = ""
    idle_mark: str = ""
    call: str = ""
    begun: int | None = None

    def describe(self) -> str:
        what = (
            f"waits in {self.waits_in}"
            if self.waits_in
            else f"is elsewhere, after {self.backwards} backward calls"
        )
        return f"rank {self.rank} {what}, at {self.line}: {self.source}" + (
            f" ({self.note})" if self.note else ""
        )


def find(
    rank: int, waiting: tuple[object, ...] | None, backwards: int, thread: int
) -> RankPosition:
    """Return where the session's thread is now.

    ``waiting`` is the synchronisation that it declared to wait in, if any.
    """
    calls = threads.calls_of(thread)
    user = next((level for level, call in enumerate(calls) if _is_the_loops(call)), len(calls) - 1)
    line, source = _line(calls[user]) if calls else ("an unknown line", "")
    waits_in = (
        " ".join(map(str, waiting))
        if waiting is not None
        else _synchronisation(thread, calls[: user + 1])
    )
    call = f"{calls[0].f_code.co_name}:{calls[0].f_lineno}" if calls else ""
    note = _note(_loader(thread, calls[:user]))
    return RankPosition(rank, waits_in, line, source, backwards, note, call=call)


def _is_the_loops(call: Call) -> bool:
    return not is_inside(call.f_globals) and not call.f_code.co_filename.startswith(LIBRARIES)


def _name(call: Call) -> str:
    return call.f_globals.get("__name__") or ""


def _line(call: Call) -> tuple[str, str]:
    # f_lineno may be None while the frame runs
    file, number = call.f_code.co_filename, call.f_lineno or 0
    return f"{_shortened(file)}:{number}", linecache.getline(file, number).strip()


def _shortened(file: str) -> str:
    try:
        return file.removeprefix(os.getcwd() + os.sep)
    except OSError:  # the script may remove the directory that it works in
        return file


def _synchronisation(thread: int, calls: list[Call]) -> str:
    """Name the loop's call that is in a collective or at the session's end; "" if none is."""
    if any(call.f_code.co_name == "_wait_for_all_ends" for call in calls[:3]):
        return END
    inner = next((call for call in calls if not _name(call).startswith(OPERATORS)), None)
    if len(calls) < 2 or inner is None or not _name(inner).startswith("torch.distributed"):
        return ""
    called, owner = calls[-2], threads.self_of(thread, len(calls) - 2, type) or type(None)
    name = called.f_code.co_name
    if name == "__init__":
        return f"{owner.__name__}(...)"
    if issubclass(owner, Module):
        return f"a call of {owner.__name__}"
    return f"s.{name}" if _name(called) in SESSION else name


def _note(iterator: object) -> str:
    """Return a note if the rank waits for the workers of a DataLoader: how many are alive."""
    if iterator is None:
        return ""
    workers = loaders.workers(iterator)
    note = (
        "it waits for the workers of its DataLoader, of which"
        f" {sum(worker.is_alive() for worker in workers)} of {len(workers)} live"
    )
    stopped = [str(worker.pid) for worker in workers if is_stopped(worker.pid)]
    return f"{note}; stopped by a signal: process {', '.join(stopped)}" if stopped else note


def waited_workers(thread: int) -> tuple[list[int], object]:
    """Return the workers that this thread waits for, and how many batches have come."""
    iterator = _loader(thread, threads.calls_of(thread))
    return (
        ([], None)
        if iterator is None
        else ([worker.pid for worker in loaders.workers(iterator)], batches_come(iterator))
    )


def _loader(thread: int, calls: list[Call]) -> object:
    """Return the loader iterator with workers in whose methods the thread is, or None."""
    levels = [level for level, call in enumerate(calls) if _name(call) == DATA]
    found = (threads.self_of(thread, level, weakref.ref) for level in levels)
    iterators = (one() for one in found if one is not None)
    return next((iterator for iterator in iterators if loaders.workers(iterator)), None)
