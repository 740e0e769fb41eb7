"""Hides objects from the garbage collector while ranks are forked from this process."""

from __future__ import annotations

import gc
import os
import weakref
from functools import partial
from itertools import compress
from operator import is_

from torchbus import objects

OLD_OBJECT = os.environ
"""One that the collector lists, unless the script has called ``gc.freeze``. To count the frozen
objects takes as long as to list them.
"""
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that Python code, or an extension, has made


def freeze() -> None:
    """Let the garbage collector ignore all objects that are alive, until ``thaw``.

    The collector writes to each object that it examines, so a forked process would get a copy of
    every page. ``objects.alive`` can't list frozen objects, so it gets the few that it may need.
    """
    listed = gc.get_objects()
    if not any(map(partial(is_, OLD_OBJECT), listed)):
        return  # the script has called gc.freeze, and only the script may undo that
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
