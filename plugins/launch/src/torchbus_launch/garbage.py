"""The garbage collector's permanent generation, while ranks are forked from this process."""

from __future__ import annotations

import gc
import weakref
from itertools import compress

from torchbus import objects

IMMORTAL_AT_MOST = 2_000
"""Python 3.12 freezes its immortal objects, some 375. More than this, and the script has frozen."""

HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that Python code, or an extension, has made


def freeze() -> None:
    """Let the garbage collector pass over all that is alive, until ``thaw``.

    It writes to each object that it looks at, so a forked process would get a copy of every page.
    ``objects.alive`` need not look at them either: it gets the few that may be asked for.
    """
    if gc.get_freeze_count() > IMMORTAL_AT_MOST:
        return  # the script has done it, and only the script may undo it
    listed = gc.get_objects()
    kinds = {kind for kind in set(map(type, listed)) if _may_be_sought(kind)}
    wanted = compress(listed, map(kinds.__contains__, map(type, listed)))
    objects.frozen[:] = map(weakref.ref, wanted)
    gc.freeze()


def thaw() -> None:
    """Undo ``freeze``."""
    if objects.frozen:
        objects.frozen.clear()
        gc.unfreeze()


def _may_be_sought(kind: type) -> bool:
    is_of_python = kind.__flags__ & HEAP_TYPE and kind.__weakrefoffset__
    return bool(is_of_python) and not issubclass(kind, type)
