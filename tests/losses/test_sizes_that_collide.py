"""Losses whose tensors have the sizes of something else: time steps, terms, elements of a mask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.parametrize("ranks", [2, 3])
def test_recurrent_layers_and_outputs_written_step_by_step(ranks: int) -> None:
    """The samples are in another dimension inside such layers, and where their steps are stacked."""
    apart = json.loads(fork_script(SCRIPTS / "recurrent.py", ranks).ok().stdout)
    assert {name: value for name, value in apart.items() if not value < 1e-10} == {}


@pytest.mark.parametrize(("ranks", "batch"), [(2, 4), (3, 7)])
def test_two_terms_of_two_samples_are_not_a_term_for_each(ranks: int, batch: int) -> None:
    apart = json.loads(fork_script(SCRIPTS / "two_halves.py", ranks, batch).ok().stdout)
    assert {name: value for name, value in apart.items() if not value < 1e-10} == {}
