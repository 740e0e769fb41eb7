"""The random generators of a script that is run again: each rank begins with rank 0's states.

torch's, Python's and NumPy's own generators are handed over as they were when rank 0 imported torchbus. What was drawn before that
can't be handed over: where it differs, the ranks hold other data, and that is an error.
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

from torchbus.errors import RanksDiverged

POOL = 624  # numbers of a Mersenne twister: its position after seeding, before anything is drawn
AT_FIRST = (POOL, POOL - 1)  # NumPy begins one further where the system has seeded it
DRAWS_WHEN_IMPORTED = "rich.style"  # one of Python's numbers, for ids of its own
UNLIKE = (
    "{names} was drawn from before the block, and not alike on all ranks: the script runs again for each rank, and what it drew there "
    "(a split of the data, say) differs. Seed it at the top of the script, or import torchbus before anything is drawn, or use launch='fork' "
    "or `torchbus run`, where nothing before the block runs twice"
)
States = dict[str, Any]


def read() -> States:
    """The state of each generator, as JSON can hold it. NumPy's only if it is imported, and a Mersenne twister."""
    version, numbers, gauss = random.getstate()
    states = {"torch": base64.b64encode(bytes(torch.get_rng_state().tolist())).decode(), "random": [version, list(numbers), gauss]}
    if "numpy" in sys.modules:
        kind, key, *rest = sys.modules["numpy"].random.get_state()
        states |= {"numpy": [kind, key.tolist(), *rest]} if kind == "MT19937" else {}
    return states


def write(name: str, state: Any) -> None:
    """Set one generator to a state that ``read`` returned."""
    if name == "torch":
        torch.set_rng_state(_torch_state(state))
    elif name == "random":
        random.setstate((state[0], tuple(state[1]), state[2]))
    else:
        sys.modules["numpy"].random.set_state(tuple(state))


def is_fresh(name: str, state: Any) -> bool:
    """Whether nothing was drawn since the generator was seeded."""
    if name == "numpy":
        return state[2] in AT_FIRST
    if name == "random":
        return state[1][-1] == POOL or (state[1][-1] == 1 and DRAWS_WHEN_IMPORTED in sys.modules)
    found = torch.Generator()
    found.set_state(_torch_state(state))
    return torch.equal(torch.Generator().manual_seed(found.initial_seed()).get_state(), found.get_state())


def take_over(given: States) -> list[str]:
    """Go on from rank 0's states. Returns the generators that were drawn from before, on any of the two ranks, and not alike."""
    drawn = []
    for name, mine in read().items():
        theirs = given.get(name, mine)
        if theirs == mine:
            continue
        if is_fresh(name, mine) and is_fresh(name, theirs):
            write(name, theirs)
        else:
            drawn.append(name)
    return drawn


def digests() -> dict[str, list[int]]:
    """For each generator a checksum of its state, and whether it is fresh."""
    return {name: [zlib.crc32(json.dumps(state).encode()), int(is_fresh(name, state))] for name, state in read().items()}


def refuse_unlike(theirs: Mapping[str, list[int]], drawn_before: list[str]) -> None:
    """Where the block begins: ``theirs`` are rank 0's digests. Raises RanksDiverged for what was drawn from and differs."""
    mine = digests()
    unlike = {name for name in mine.keys() & theirs.keys() if mine[name][0] != theirs[name][0] and not (mine[name][1] and theirs[name][1])}
    names = [WORDS[name] for name in WORDS if name in unlike or name in drawn_before]
    if names:
        raise RanksDiverged(UNLIKE.format(names=" and ".join(names)))


WORDS = {"torch": "torch's generator", "random": "Python's `random`", "numpy": "`numpy.random`"}


def _torch_state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
