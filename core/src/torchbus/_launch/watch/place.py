"""Where a rank's main thread is: the line of the loop, and what it waits for."""

from __future__ import annotations

import linecache
import os
import threading
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch.nn import Module

from torchbus._launch.frozen.standstill import is_stopped
from torchbus._launch.watch import thread_frames
from torchbus._session.notices import LIBRARIES, is_inside

END = "the end of the session"
SESSION = ("torchbus.session", "torchbus._ranks.ranks")  # where the methods of the session are
OPERATORS = ("torch._ops", "torch._library")  # the collectives of divided tensors end there
DATA = "torch.utils.data.dataloader"


@dataclass(frozen=True)
class Place:
    """``waits_in``: the synchronisation that the rank waits in ("backward 41", "s.barrier"), "" if it waits in none.
    ``line``: of the loop, as in "train.py:57". ``source``: that line's text. ``note``: what else can be said.
    ``rest``: stays the same as long as the rank can't go on by itself, "" where it may (module rest)."""

    rank: int
    waits_in: str
    line: str
    source: str
    backwards: int
    note: str = ""
    rest: str = ""

    def words(self) -> str:
        what = f"waits in {self.waits_in}" if self.waits_in else f"is elsewhere, after {self.backwards} backward calls"
        return f"rank {self.rank} {what}, at {self.line}: {self.source}" + (f" ({self.note})" if self.note else "")


def find(rank: int, waiting: tuple[object, ...] | None, backwards: int) -> Place:
    """Where the main thread is now. ``waiting``: what it has said itself that it waits for."""
    chain = thread_frames.of_thread(threading.main_thread().ident)
    user = next((index for index, frame in enumerate(chain) if _is_the_loops(frame)), len(chain) - 1)
    line, source = _line(chain[user]) if chain else ("an unknown line", "")
    waits_in = " ".join(map(str, waiting)) if waiting is not None else _synchronisation(chain[: user + 1])
    return Place(rank, waits_in, line, source, backwards, _note(chain[:user]))


def _is_the_loops(frame: FrameType) -> bool:
    return not is_inside(frame) and not frame.f_code.co_filename.startswith(LIBRARIES)


def _name(frame: FrameType) -> str:
    return frame.f_globals.get("__name__") or ""


def _line(frame: FrameType) -> tuple[str, str]:
    file, number = frame.f_code.co_filename, frame.f_lineno or 0  # None where the frame is just going on
    short = file.removeprefix(os.getcwd() + os.sep)
    return f"{short}:{number}", linecache.getline(file, number).strip()


def _synchronisation(chain: list[FrameType]) -> str:
    """What the loop has called, if that has ended up in a collective or at the end of the session."""
    if any(frame.f_code.co_name == "_wait_for_all_ends" for frame in chain[:3]):
        return END
    inner = next((frame for frame in chain if not _name(frame).startswith(OPERATORS)), None)
    if len(chain) < 2 or inner is None or not _name(inner).startswith("torch.distributed"):
        return ""
    called = chain[-2]
    name, owner = called.f_code.co_name, type(called.f_locals.get("self"))
    if name == "__init__":
        return f"{owner.__name__}(...)"
    if issubclass(owner, Module):
        return f"the first call of {owner.__name__}"
    return f"s.{name}" if _name(called) in SESSION else name


def _note(inner: list[FrameType]) -> str:
    """Whether the rank waits for the workers of its loader, and whether they live."""
    iterator = _loader(inner)
    if iterator is None:
        return ""
    workers = iterator._workers
    note = f"it waits for the workers of its DataLoader, of which {sum(worker.is_alive() for worker in workers)} of {len(workers)} live"
    stopped = [str(worker.pid) for worker in workers if is_stopped(worker.pid)]
    return f"{note}; stopped by a signal: process {', '.join(stopped)}" if stopped else note


def waited_workers() -> tuple[list[int], object]:
    """The processes of the loader that the main thread waits for, and how many of its batches have come."""
    iterator = _loader(thread_frames.of_thread(threading.main_thread().ident))
    return ([], None) if iterator is None else ([worker.pid for worker in iterator._workers], getattr(iterator, "_rcvd_idx", None))


def _loader(frames: list[FrameType]) -> Any:
    """The iterator over workers that one of the frames belongs to."""
    iterators = (frame.f_locals.get("self") for frame in frames if _name(frame) == DATA)
    return next((iterator for iterator in iterators if getattr(iterator, "_workers", None)), None)
