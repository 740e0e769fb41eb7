"""Random generators of a script that runs again: each rank begins with rank 0's states.

Rank 0 hands over the states of torch's, Python's and NumPy's own generators from the moment when it
imported torchbus. It can't hand over numbers drawn before that. If those differ, the ranks hold
different data, and that is an error.
"""

from __future__ import annotations

import base64
import json
import random
import sys
import zlib
from collections.abc import Mapping
from typing import Any

import torch

from torchbus.bootstrap import States, generator_states
from torchbus.errors import RanksDiverged

POOL = 624  # position of a Mersenne Twister after seeding, before the first draw
AT_FIRST = (POOL, POOL - 1)  # NumPy starts one lower if the system seeded it
DRAWS_WHEN_IMPORTED = "rich.style"  # it draws one of Python's numbers, for its ids
UNLIKE = (
    "{names} was drawn from before the block, and not identically on all ranks: the script runs"
    " again for each rank, and what it drew there (a split of the data, say) differs. Seed it at"
    " the top of the script, or import torchbus before anything is drawn, or use launch='fork' or"
    " `torchbus run`, where nothing before the block runs twice"
)


def write(name: str, state: Any) -> None:
    """Set one generator to a state that ``generator_states`` returned."""
    if name == "torch":
        torch.set_rng_state(_torch_state(state))
    elif name == "random":
        random.setstate((state[0], tuple(state[1]), state[2]))
    else:
        sys.modules["numpy"].random.set_state(tuple(state))


def is_fresh(name: str, state: Any) -> bool:
    """Return whether nothing was drawn since the generator was seeded."""
    if name == "numpy":
        return state[2] in AT_FIRST
    if name == "random":
        return state[1][-1] == POOL or (state[1][-1] == 1 and DRAWS_WHEN_IMPORTED in sys.modules)
    found = torch.Generator()
    found.set_state(_torch_state(state))
    return torch.equal(
        torch.Generator().manual_seed(found.initial_seed()).get_state(), found.get_state()
    )


def take_over(given: States) -> list[str]:
    """Continue from rank 0's states.

    Returns the generators that this rank or rank 0 had drawn from, and whose states differ.
    """
    drawn = []
    for name, mine in generator_states().items():
        theirs = given.get(name, mine)
        if theirs == mine:
            continue
        if is_fresh(name, mine) and is_fresh(name, theirs):
            write(name, theirs)
        else:
            drawn.append(name)
    return drawn


def digests() -> dict[str, list[int]]:
    """Return a checksum of each generator's state, and whether the generator is fresh."""
    return {
        name: [zlib.crc32(json.dumps(state).encode()), int(is_fresh(name, state))]
        for name, state in generator_states().items()
    }


def refuse_unlike(theirs: Mapping[str, list[int]], drawn_before: list[str]) -> None:
    """At the beginning of the block, compare this rank's digests with ``theirs``, rank 0's.

    Raises RanksDiverged for generators that were drawn from and differ.
    """
    mine = digests()
    unlike = {
        name
        for name in mine.keys() & theirs.keys()
        if mine[name][0] != theirs[name][0] and not (mine[name][1] and theirs[name][1])
    }
    names = [WORDS[name] for name in WORDS if name in unlike or name in drawn_before]
    if names:
        raise RanksDiverged(UNLIKE.format(names=" and ".join(names)))


WORDS = {"torch": "torch's generator", "random": "Python's `random`", "numpy": "`numpy.random`"}


def _torch_state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
