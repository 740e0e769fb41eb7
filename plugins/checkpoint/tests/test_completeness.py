"""What a checkpoint must hold, and what is said if a strategy does not give all of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torchbus import session

from torchbus_checkpoint.disk.parts import refuse_missing
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.state.checks import held, keeps_state, refuse_separate
from torchbus_testing.forking import fork_script

ALONE = Path(__file__).parent / "scripts" / "state_of_one_rank.py"


def test_a_state_that_only_some_ranks_have_is_refused(tmp_path: Path) -> None:
    result = fork_script(ALONE, cwd=tmp_path)
    assert result.status == 1
    expected = (
        "would not be complete: the state of optimizer optimizer (Adam) has 6 tensors on rank 0,"
        " and rank 1 has 3, which are not the same ones. A strategy that divides them must gather"
        " them in its hooks of state_dict()"
    )
    assert expected in " ".join(result.stderr.split()), result.stderr
    assert not (tmp_path / "checkpoint").exists()


def test_as_many_tensors_with_other_names_are_others() -> None:
    def training(number: int) -> dict[str, object]:
        state = {"state": {number: {"exp_avg": torch.zeros(1)}}}
        return {"optimizers": [{"name": "optimizer", "class": "Adam", "state": state}]}

    told = [held({}, training(number)) for number in (0, 1)]
    with pytest.raises(CheckpointError, match="1 tensors on rank 0, and rank 1 has 1,"):
        refuse_separate(told, "here")
    refuse_separate([told[0], told[0]], "here")


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(-1, 1))
def test_parts_are_the_whole(sizes: list[int], more: int) -> None:
    """Along one dimension, as ranks divide tensors."""
    chunks = [
        ChunkStorageMetadata(torch.Size([sum(sizes[:n]), 0]), torch.Size([size, 3]))
        for n, size in enumerate(sizes)
    ]
    whole = torch.Size([sum(sizes) + more, 3])
    index = Metadata({"model/weight": TensorStorageMetadata(TensorProperties(), whole, chunks)})
    if not more:
        return refuse_missing(index, Path("here"))
    numbers = f"the ranks have {3 * sum(sizes)} of the {whole.numel()} numbers of model/weight"
    with pytest.raises(CheckpointError, match=numbers):
        refuse_missing(index, Path("here"))


@pytest.mark.parametrize(
    ("make", "keeps"),
    [
        (Adam, True),
        (AdamW, True),
        (Adagrad, True),
        (RMSprop, True),
        (lambda p: SGD(p, lr=0.1), False),
        (lambda p: SGD(p, lr=0.1, momentum=0.9), True),
        (LBFGS, False),
    ],
)
def test_what_keeps_a_state(make: Callable[..., Optimizer], keeps: bool) -> None:
    """The trial changes nothing, and no hook hears it."""
    weight, heard = nn.Parameter(torch.ones(2)), []
    optimizer = make([weight])
    optimizer.register_step_post_hook(lambda *_: heard.append("step"))
    before = len(optimizer.state), weight.clone()
    assert keeps_state(optimizer) == keeps
    assert (len(optimizer.state), heard) == (before[0], [])
    assert weight.equal(before[1]) and weight.grad is None


def trained(optimizer_of: Callable[..., Optimizer], folder: Path) -> list[str]:
    """Warnings of a run whose optimizer shows no state."""
    with warnings.catch_warnings(record=True) as told, session() as s:
        warnings.simplefilter("always")
        model = nn.Linear(2, 1)
        optimizer = optimizer_of(model.parameters())
        optimizer.register_state_dict_post_hook(lambda _, state: {**state, "state": {}})
        s.save(folder / "before")
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        s.save(folder / "after")
    return [str(one.message) for one in told if "has no state of" in str(one.message)]


def test_a_state_that_is_kept_elsewhere_is_told(tmp_path: Path) -> None:
    assert trained(lambda p: SGD(p, lr=0.1), tmp_path / "SGD") == []
    (told,) = trained(Adam, tmp_path / "Adam")
    assert (
        "the checkpoint has no state of optimizer optimizer (Adam), which has made 1 steps. If a"
        " strategy keeps the state elsewhere, it must return it from its hook of state_dict(); if"
        " the optimizer has had no gradients so far, all is well" in told
    )
