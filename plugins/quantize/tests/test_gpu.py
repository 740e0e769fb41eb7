"""Quantised layers on a GPU, against tensors of the library in a plain loop."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torchbus import session

pytest.importorskip("torchao", reason="torchao is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
LOOP = runpy.run_path(str(Path(__file__).parent / "scripts" / "adapted.py"))
make, train, values, bases = (LOOP[name] for name in ("make", "train", "values", "bases"))
by_hand, apart = LOOP["by_hand"], LOOP["apart"]
ROUNDING = {"nf4": 0.0, "int8": 2e-6}


@pytest.mark.parametrize("name", ["nf4", "int8"])
def test_a_loop_on_a_gpu_ends_as_with_tensors_of_the_library(name):
    with session(quantize=name, quantize_library="torchao", devices=1):
        model, optimizer = make(device="cuda")
        train(model, optimizer, 6)
    assert {layer.weight.dtype for layer in bases(model).values()} == {torch.uint8}
    assert apart(values(model), by_hand(name, device="cuda")) <= ROUNDING[name]
