"""Schemas of the two files ``training`` and ``rank-0``."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable

import torch
from torch import Tensor

from torchbus_checkpoint.state.plain import State, decode
from torchbus_strategy.script_generators import set_state


def stream(value: State) -> None:
    """The generators of Python, torch and NumPy accept it."""
    torch.Generator().set_state(value["torch"])
    random.Random().setstate(value["python"])
    if "numpy" in value and "numpy" in sys.modules:
        set_state(sys.modules["numpy"].random.RandomState(), value["numpy"])


def random_state(value: State) -> None:
    """It has the current stream, and the common one."""
    state = decode(value)
    for one in state["streams"].values():
        stream(one)
    _all_str(state["streams"])
    if (
        not {state["current"], "order"} <= state["streams"].keys()
        or type(state.get("clock", 0)) is not int
    ):
        raise ValueError("a stream is missing")


def section(value: tuple[object, object]) -> None:
    loop, epoch = value
    if type(loop) is not int or type(epoch) is not int:
        raise ValueError("not a pair of numbers")


def gap(value: tuple[tuple[object, object], object, object]) -> None:
    """It has all parts, or is unknown."""
    at, number, known = value
    section(at)
    if type(number) is not int or not isinstance(known, dict):
        raise ValueError("not a gap")
    if known:
        standing(known["start"])
        _all_str([*known["drawn"], *known["ends"], *known["ends"].values()])


def standing(value: State) -> None:
    random_state(value["random"])
    for place, name in value["own"]:
        _all_str([place, name])


def passes(value: tuple[tuple[object, object], list[object], list[object]]) -> None:
    at, over, before = value
    section(at)
    _all_str(over)
    if len(over) != len(before) or any(type(one) is not bool for one in before):
        raise ValueError("not passes")


def pair(value: tuple[object, State]) -> None:
    """It has the signature of a loader, and the states of its generators."""
    over, states = value
    _all_str([over, *states])
    decode(states)


def _all_str(values: Iterable[object]) -> None:
    if not all(isinstance(one, str) for one in values):
        raise ValueError("not text")


def plain(value: object) -> None:
    """``decode`` accepts it."""
    decode(value)


MODEL = {
    "name": str,
    "class": str,
    "training": [bool],
    "requires_grad": [bool],
    "hidden": {str: Tensor},
}
STATE = {"name": str, "class": str, "state": plain}
OPTIMIZER = {
    **STATE,
    "shapes": [[[int]]],
    "gradients": (type(None), [(type(None), Tensor)]),
    "built?": [{str: plain}],
}
COMMON = {
    "trained": [MODEL],
    "other": [MODEL],
    "loose": [Tensor],
    "schedulers": [STATE],
    "scalers": [STATE],
    "registered": {str: plain},
}
WHOLE = {**COMMON, "optimizers": [OPTIMIZER], "weights": [str]}
IN_PARTS = {**COMMON, "optimizers": [object], "groups": [str], "models": [dict]}
LOADER_STATE = {"random": random_state, "generators": {str: plain}}
OPEN = {
    "section": section,
    "ordinal": int,
    "started": LOADER_STATE,
    "wanted": (type(None), LOADER_STATE),
    "taken": int,
    "last?": bool,
    "samples?": {"chosen": str, "held": str},
}
POSITION = {
    "born": {str: (type(None), LOADER_STATE)},
    "variables": {str: {str: plain}},
    "counters": {str: (bool, int, str, float)},
    "heads": {str: int},
    "reader": str,
    "section": section,
    "sections": [passes],
    "gaps?": [gap],
    "gap?": (type(None), standing),
    "saves?": int,
    "open": [OPEN],
    "loaders": [pair],
    "random": random_state,
    "loop_ends": [[(type(None), int)]],
    "ended": bool,
    "left?": bool,
}
WEIGHTS = {str: object}
RANK = {
    "position": POSITION,
    "plugins": {str: plain},
    "steps": int,
    "made?": [int],
    "in_step?": [bool],
    "epochs": int,
    "metric": (type(None), int, float),
}
