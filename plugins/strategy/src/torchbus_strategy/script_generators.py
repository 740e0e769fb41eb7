"""Random generators of the script's own, such as ``numpy.random.default_rng()`` of a data set.

Ranks draw different numbers from them during a pass over divided data, and the same ones everywhere
else.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import FrameType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torchbus.compat import python
from torchbus.runtime.user_code import is_users_module

from torchbus_strategy.user_code import users_frames

Generator: TypeAlias = Any  # torch.Generator, random.Random, NumPy's Generator or RandomState

OBJECTS_AT_MOST = 1000
ITEMS_AT_MOST = 64
STRIDE = 2**20
MERSENNE_NUMBERS = 624


@dataclass
class TrackedGenerator:
    """A generator, and the state of the stream that is not in use."""

    generator: Generator
    other: object


class ScriptGenerators:
    """Switches generators between a stream that is common to all ranks, and one of this rank.

    ``apart`` says whether this rank's stream is in use. In each pass, that stream is derived from
    the state of the common stream, which does not change.
    """

    def __init__(self) -> None:
        self._held: dict[int, TrackedGenerator] = {}
        self._is_inside = False
        self.apart = False

    def begin(self, found: Iterable[Generator], number: int) -> None:
        """Begin a pass. ``number`` must differ between ranks, and between passes."""
        if not self._is_inside:
            self._held, self._is_inside = {}, True
        for one in found:
            if id(one) not in self._held:
                self._held[id(one)] = TrackedGenerator(one, derived(one, number))

    def derive_again(self, number: int) -> None:
        """Derive this rank's streams again, in the middle of a pass."""
        apart = self.apart
        self.use(False)
        for held in self._held.values():
            held.other = derived(held.generator, number)
        self.use(apart)

    def use(self, apart: bool) -> None:
        """Draw different numbers on each rank if ``apart``, inside a pass; else the same ones."""
        apart = apart and self._is_inside
        if apart != self.apart:
            self.apart = apart
            for held in self._held.values():
                now = state_of(held.generator)
                set_state(held.generator, held.other)
                held.other = now

    def end(self) -> None:
        """End the pass."""
        self.use(False)
        self._is_inside = False

    def go_on(self) -> None:
        """Reopen the pass, because training continues with its batches."""
        self._is_inside = True

    def forget(self) -> None:
        """Leave all generators as they are."""
        self._held, self._is_inside, self.apart = {}, False, False


# One generator -----------------------------------------------------------------------------------


def _are_generators() -> Callable[[object], bool]:
    """Return a test for generators with a state, other than the common ones of the libraries."""
    classes = kinds()
    others = set(map(id, _of_libraries()))

    def is_one(thing: object) -> bool:
        return (
            isinstance(thing, classes)
            and not isinstance(thing, random.SystemRandom)
            and id(thing) not in others
        )

    return is_one


def kinds() -> tuple[type, ...]:
    """Return the classes of generators: torch's, Python's, and NumPy's if it is imported."""
    return (torch.Generator, random.Random, *kinds_of_numpy())


def kinds_of_numpy() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy")
    return () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)


def _of_libraries() -> Iterator[object]:
    """Yield the generators behind the functions of torch, random and NumPy."""
    yield torch.default_generator
    yield getattr(random.random, "__self__", None)
    if "numpy" in sys.modules:
        yield getattr(sys.modules["numpy"].random.random, "__self__", None)


def state_of(one: Generator) -> object:
    """Return a generator's state, for ``set_state``."""
    if isinstance(one, random.Random):
        return one.getstate()
    return one.bit_generator.state if hasattr(one, "bit_generator") else one.get_state()


def set_state(one: Generator, state: Any) -> None:
    """Set a generator to a result of ``state_of``.

    Raises ValueError or TypeError for anything else.
    """
    if isinstance(one, random.Random):
        one.setstate(state)
        return
    if isinstance(one, kinds_of_numpy()):
        refuse_outside(state)
    if hasattr(one, "bit_generator"):
        one.bit_generator.state = state
    else:
        one.set_state(state)


def refuse_outside(state: Any) -> None:
    """Raise ValueError for a position after the last number, where NumPy would read memory."""
    if isinstance(state, dict):
        inner = state.get("state")
        of_inner = inner.get("pos", 0) if isinstance(inner, dict) else 0
        places = [of_inner, state.get("buffer_pos", 0)]
    else:
        places = list(state[2:3])
    if not all(0 <= place <= MERSENNE_NUMBERS for place in places):
        raise ValueError(f"a generator at the place {places}")


def derived(one: Generator, number: int) -> object:
    """Return another state for a generator, which depends on its present state and ``number``."""
    before = state_of(one)
    try:
        _seed(one, (_drawn(one) + number) % 2**63)
        return state_of(one)
    finally:
        set_state(one, before)


def _drawn(one: Generator) -> int:
    if isinstance(one, torch.Generator):
        return int(torch.randint(2**62, (1,), generator=one, device=one.device))
    if isinstance(one, random.Random):
        return one.getrandbits(62)
    return int.from_bytes(one.bytes(7), "little")


def _seed(one: Generator, number: int) -> None:
    if isinstance(one, torch.Generator):
        one.manual_seed(number)
    elif isinstance(one, random.Random):
        one.seed(number)
    elif hasattr(one, "bit_generator"):
        one.bit_generator.state = type(one.bit_generator)(number).state
    else:
        one.set_state(type(one)(number % 2**32).get_state())


# Where they are ----------------------------------------------------------------------------------


def of_pass(loader: DataLoader[object], outermost: FrameType | None) -> list[Generator]:
    """Return the generators that a loader's data set and the script's variables lead to.

    Generators of the order of data are left out: their numbers must always be the same on all
    ranks.
    """
    found = reached([loader.dataset, loader.collate_fn, *_variables(users_frames(outermost))])
    samplers = (
        loader.batch_sampler,
        loader.sampler,
        getattr(loader.batch_sampler, "sampler", None),
    )
    held = {id(loader.generator)} | {id(one) for two in samplers for one in _attributes(two)}
    return [one for one in found if id(one) not in held]


def seed_in_worker(number: int) -> None:
    """Derive the states of generators in a loader's worker, so that each rank's workers differ."""
    worker = get_worker_info()
    for one in reached([] if worker is None else [worker.dataset]):
        set_state(one, derived(one, number))


def _variables(frames: list[FrameType]) -> Iterator[object]:
    for frame in frames:
        yield from python.read(frame).values()
    for names in {id(frame.f_globals): frame.f_globals for frame in frames}.values():
        yield from list(names.values())


def reached(values: Iterable[object]) -> list[Generator]:
    """Return the generators among ``values``, and those to which lists, functions and objects lead.

    In the module that defines such a function or class, only the variables are searched.
    """
    found: dict[int, Generator] = {}
    seen: set[int] = set()
    waiting: list[object] = []
    is_generator = _are_generators()

    def look(parts: Iterable[object]) -> None:
        for part in parts:
            if is_generator(part):
                found[id(part)] = part
            elif not isinstance(part, LEAVES) and id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)

    look(values)
    for one in waiting:
        if len(waiting) > OBJECTS_AT_MOST:
            break
        look(_parts(one))
    for name in {_module_of(one) for one in waiting} - {""}:
        values = list(vars(sys.modules[name]).values())
        found |= {id(value): value for value in values if is_generator(value)}
    return list(found.values())


LEAVES = (type, ModuleType, Tensor, DataLoader, str, bytes, int, float, complex, NoneType)


def _parts(one: Any) -> Iterable[object]:
    if isinstance(one, list | tuple | dict):
        items = one.values() if isinstance(one, dict) else one
        return list(islice(items, ITEMS_AT_MOST))
    if isinstance(one, FunctionType):
        return _closed_over(one) if _module_of(one) else ()
    if isinstance(one, MethodType):
        return (one.__self__, one.__func__)
    if isinstance(one, functools.partial):
        return (one.func, *one.args, *one.keywords.values())
    if isinstance(one, Module):
        return [value for part in one.modules() for value in _own(part)]
    is_looked_into = _module_of(one) or isinstance(one, Dataset) or callable(one)
    return _attributes(one) if is_looked_into else ()


def _attributes(one: object) -> list[object]:
    return list(getattr(one, "__dict__", {}).values())


def _own(module: Module) -> Iterator[object]:
    """Yield the attributes that the script has given to a module."""
    return (value for name, value in vars(module).items() if not name.startswith("_"))


def _closed_over(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # the cell is empty
            yield cell.cell_contents
    yield from function.__defaults__ or ()


def _module_of(one: object) -> str:
    """Return the module of the script's own code that defines a function, or an object's class."""
    definer = one if isinstance(one, FunctionType) else type(one)
    return _if_users(str(getattr(definer, "__module__", "")))


@lru_cache(maxsize=1024)
def _if_users(module: str) -> str:
    return module if is_users_module(module) else ""
