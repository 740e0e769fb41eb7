"""Removes random draws in training: each is the same for all rows, whichever rank has them.

This concerns everything that torch draws from its default generators, or the loop from NumPy's
global one, after the loop has begun: dropout, noise, latents. Each is drawn for one row, from a
separate generator, and repeated for all rows. The common streams of torch, NumPy and Python stay
common. The order of the data and a dataset's draws do not change.
"""

from __future__ import annotations

import os
import random
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import Dataset

from torchbus_verify._compat import DATA_ITERATOR, LOCAL_SCALAR, MAP_FETCHER, RESET, DispatchMode
from torchbus_verify.runs.inside import Inside, seed

NUMPY_ROWS = (
    "normal",
    "uniform",
    "randn",
    "rand",
    "random",
    "random_sample",
    "standard_normal",
    "randint",
    "beta",
)
NUMPY_ORDERS = ("choice", "permutation", "shuffle")
"""Functions that draw an order of data. They are not replaced, because the streams are common."""


def numpy_take_away(
    counts: Callable[[], bool], note: Callable[[str], None], names: Sequence[str] = NUMPY_ROWS
) -> None:
    """Make all rows of each draw equal, and the same in every run, from now on.

    ``counts()`` returns whether a draw now belongs to the loop. ``note`` is called with the name of
    the function of each such draw. The functions in ``names`` are replaced, others only recorded.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return
    drawn = 0

    def alike(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            nonlocal drawn
            values = original(*args, **kwargs)  # advances the generator as usual
            if not counts():
                return values
            drawn += 1
            note(f"numpy.random.{name}")
            state = numpy.random.RandomState(zlib.crc32(f"{drawn}".encode()))
            made = getattr(state, name)(*args, **kwargs)
            if getattr(made, "ndim", 0):
                made[:] = made[:1]
            return made

        return draw

    for name in names:
        setattr(numpy.random, name, alike(name, getattr(numpy.random, name)))
    for name in {*NUMPY_ROWS, *NUMPY_ORDERS} - {*names}:
        original = getattr(numpy.random, name)
        setattr(numpy.random, name, noted(f"numpy.random.{name}", original, counts, note))


PYTHON_NAMES = (
    "random",
    "uniform",
    "randint",
    "randrange",
    "choice",
    "choices",
    "sample",
    "shuffle",
    "gauss",
    "normalvariate",
    "betavariate",
    "getrandbits",
)


def watch_python(counts: Callable[[], bool], note: Callable[[str], None]) -> None:
    """Record draws from Python's generator, which are not changed.

    ``counts()`` returns whether a draw now belongs to the loop. ``note`` is called with the name of
    the function of each such draw.
    """
    for name in PYTHON_NAMES:
        setattr(random, name, noted(f"random.{name}", getattr(random, name), counts, note))


def noted(
    name: str, original: Callable[..., Any], counts: Callable[[], bool], note: Callable[[str], None]
) -> Callable[..., Any]:
    """Wrap a function to record its draws in the loop."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        if counts():
            note(name)
        return original(*args, **kwargs)

    return draw


aten = torch.ops.aten
IN_PLACE = {
    "bernoulli_",
    "uniform_",
    "normal_",
    "random_",
    "exponential_",
    "cauchy_",
    "log_normal_",
    "geometric_",
}
NEW = {"rand", "randn", "randint", "normal"}
LIKE = {"rand_like", "randn_like", "randint_like"}


def take_away(run: Inside) -> None:
    """Make all rows of each draw equal, from now on in this run."""
    _replace(run, SameForAllRows(run.writer))


def make_common(run: Inside) -> None:
    """Let every rank draw what one process draws, so that rows still differ.

    This is for scripts that fail on equal rows, for example because a variance is zero.
    """
    _replace(run, SameForAllRanks(run.writer))


def _replace(run: Inside, mode: Any) -> None:
    if run.session is not None:
        # every rank continues to draw what one process draws
        run.session.random.split = lambda rank: None
        run.session.random.draw_apart = lambda generators, rank: None
    mode.__enter__()
    for kind in (DATA_ITERATOR, *DATA_ITERATOR.__subclasses__()):
        for name in {"__init__", "__next__", RESET} & set(vars(kind)):
            _pause_around(kind, name, mode)
    register_module_forward_pre_hook(mode.begin)
    run.steps.after_backward.append(mode.begin)
    numpy_take_away(lambda: mode.counts, mode.note, mode.NUMPY)
    watch_python(lambda: mode.counts, mode.note)


class SameForAllRows(DispatchMode):
    """Replaces the results of random operations, and records the first one."""

    NUMPY: tuple[str, ...] = NUMPY_ROWS

    def __init__(self, writer: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._writer, self._noted = writer, False
        self._begun, self._paused, self._count = False, 0, 0
        self._pid = os.getpid()

    def begin(self, *arguments: Any) -> None:
        """Record that the loop computes. Earlier draws were for data and parameters."""
        self._begun = True

    def pause(self, by: int) -> None:
        self._paused += by
        self._begun = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is LOCAL_SCALAR and not isinstance(args[0], Tensor):
            return args[0]  # a scalar with a graph, which arrives unwrapped
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        if not seeded or not self.counts or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        made = self._row(func, args, kwargs)
        if made is None:
            return func(*args, **kwargs)
        self.note(func.name().removeprefix("aten::"))
        return made

    @property
    def counts(self) -> bool:
        """Whether the current draw belongs to the loop, not to its data (in a worker)."""
        return self._begun and not self._paused and os.getpid() == self._pid

    def note(self, operation: str) -> None:
        """Record the first draw."""
        if not self._noted:
            self._noted = True
            self._writer.write("taken", cause="draws", words=operation)

    def _row(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        if name in IN_PLACE and not isinstance(args[0], torch.nn.Parameter):
            return args[0].copy_(self._drawn(args[0], lambda row: func(row, *args[1:], **kwargs)))
        if name in LIKE:
            return (
                self._drawn(args[0], lambda row: func(row, *args[1:], **kwargs))
                .expand_as(args[0])
                .clone()
            )
        if name == "bernoulli" and isinstance(args[0], Tensor):
            return (self._uniform(args[0]) < args[0]).to(args[0].dtype)
        if name == "native_dropout":
            return self._dropout(*args)
        if name == "multinomial":
            return self._multinomial(*args)
        if name in NEW:
            return self._new(func, args, kwargs)
        return torch.arange(args[0]) if name == "randperm" else None

    def _drawn(self, like: Tensor, draw: Callable[[Tensor], Any]) -> Tensor:
        """Return one row of a tensor, drawn from a generator with the same state in every run."""
        row = torch.empty_like(like[:1] if like.dim() and len(like) else like)
        state = torch.get_rng_state()
        self._count += 1
        torch.manual_seed(zlib.crc32(f"{self._count}".encode()))
        result = draw(row)
        torch.set_rng_state(state)
        return result if isinstance(result, Tensor) else row

    def _uniform(self, like: Tensor) -> Tensor:
        return self._drawn(like.double(), lambda row: row.uniform_()).expand(like.shape)

    def _dropout(self, values: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
        mask = (
            self._uniform(values) >= p
            if train is not False
            else torch.ones_like(values, dtype=torch.bool)
        )
        scale = 1 / (1 - p) if train is not False and p < 1 else 1.0
        return values * mask * scale, mask

    def _multinomial(
        self, weights: Tensor, count: int, replacement: bool = False, **kwargs: Any
    ) -> Tensor:
        keys = self._uniform(weights).clamp(min=1e-12).log() / weights.double().clamp(min=1e-300)
        if not replacement:
            return keys.topk(count, dim=-1).indices
        return keys.argmax(-1, keepdim=True).expand(*weights.shape[:-1], count).clone()

    def _new(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        at = next((i for i, one in enumerate(args) if isinstance(one, list | tuple)), None)
        if at is None or not args[at]:
            return None
        size = list(args[at])
        row = self._drawn(
            torch.empty(1), lambda _: func(*args[:at], [1, *size[1:]], *args[at + 1 :], **kwargs)
        )
        return row.expand(size).clone()


class SameForAllRanks(SameForAllRows):
    """Only records the first random operation, for runs whose ranks have the same streams."""

    NUMPY = ()

    def _row(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


def _pause_around(owner: Any, name: str, mode: SameForAllRows) -> None:
    original = getattr(owner, name)

    def paused(*args: Any, **kwargs: Any) -> Any:
        mode.pause(1)
        try:
            return original(*args, **kwargs)
        finally:
            mode.pause(-1)

    setattr(owner, name, paused)


State = tuple[torch.Tensor, tuple[Any, ...], Any]
"""The states of torch's, Python's and NumPy's generators; NumPy's may be None."""


def augmentation_take_away(run: Inside) -> None:
    """Make each sample's draws depend on its index, in this run and in workers that it forks."""
    original = MAP_FETCHER.fetch
    noted = False

    def fetch(fetcher: Any, index: object) -> object:
        nonlocal noted
        before = _read()
        seeded = Seeded(fetcher.dataset)
        inner, fetcher.dataset = fetcher.dataset, seeded
        try:
            return original(fetcher, index)
        finally:
            fetcher.dataset = inner
            _write(before)
            if seeded.drew and not noted:
                noted = True
                name = type(inner).__name__
                run.writer.write_anywhere("taken", cause="augmentation", words=name)

    MAP_FETCHER.fetch = fetch


class Seeded:
    """A dataset that reseeds the generators for each sample."""

    def __init__(self, dataset: Dataset[object]) -> None:
        self._dataset = dataset
        self.drew = False

    def __getitem__(self, index: object) -> object:
        seed(zlib.crc32(repr(index).encode()))
        before = _read()
        sample = self._dataset[index]
        self.drew = self.drew or not _same(before, _read())
        return sample


def _read() -> State:
    numpy = sys.modules.get("numpy")
    return (
        torch.get_rng_state(),
        random.getstate(),
        None if numpy is None else numpy.random.get_state(),
    )


def _write(state: State) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    if state[2] is not None:
        sys.modules["numpy"].random.set_state(state[2])


def _same(one: State, other: State) -> bool:
    same = torch.equal(one[0], other[0]) and one[1] == other[1]
    return same and (one[2] is None or other[2] is None or repr(one[2]) == repr(other[2]))


def statistics_take_away(run: Inside) -> None:
    """Let batch normalisation use its running statistics in this run."""
    original = torch.nn.functional.batch_norm
    noted = False

    def batch_norm(
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        nonlocal noted
        if training and not noted:
            noted = True
            run.writer.write("taken", cause="statistics", words="batch_norm")
        channels = input.shape[1]
        mean = input.new_zeros(channels) if running_mean is None else running_mean
        var = input.new_ones(channels) if running_var is None else running_var
        return original(input, mean, var, weight, bias, False, momentum, eps)

    torch.nn.functional.batch_norm = batch_norm
