"""Makes reading data deterministic: a sample is read with the same random draws on any rank.

Afterwards the generators have the state that they had before."""

from __future__ import annotations

import random
import sys
import zlib
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchbus_verify._compat import MAP_FETCHER
from torchbus_verify.runs.inside import Inside

State = tuple[torch.Tensor, tuple[Any, ...], Any]
"""Of torch's generator, of Python's and of NumPy's, which may be missing."""


def augmentation_take_away(run: Inside) -> None:
    """Apply the change to this run, and to the loaders' workers that it forks."""
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
        _seed(zlib.crc32(repr(index).encode()))
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


def _seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)


def _same(one: State, other: State) -> bool:
    same = torch.equal(one[0], other[0]) and one[1] == other[1]
    return same and (one[2] is None or other[2] is None or repr(one[2]) == repr(other[2]))


def statistics_take_away(run: Inside) -> None:
    """Apply the change to this run."""
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
