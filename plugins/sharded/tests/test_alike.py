"""What no gradient shows must be the same on all ranks of a divided model, as under ddp:
hyperparameters, and the constants of the loss.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "alike.py"

STRATEGIES = {
    "fsdp": {"strategy": "fsdp"},
    "ddp_sharded": {"strategy": "ddp_sharded"},
    "ddp_sharded, gradients too": {"strategy": "ddp_sharded", "shard_gradients": True},
}


@pytest.fixture(
    scope="module",
    params=["fsdp", *[pytest.param(name, marks=pytest.mark.slow) for name in list(STRATEGIES)[1:]]],
)
def found(request) -> tuple[str, dict[str, Any]]:
    return request.param, fork_script(SCRIPT, STRATEGIES[request.param], timeout_s=115).json()


def test_unlike_hyperparameters_are_named_with_their_value_on_each_rank(found) -> None:
    strategy, cases = found
    told = {name: text for name, (text, _) in cases.items()}
    assert cases["alike"] == ["ok", []]
    for name in ("lr", "loose"):
        assert "SGD, group 0: lr: 0.2 on rank 0, 0.1 on rank 1" in told[name], told[name]
    assert "optimizer: Adagrad on rank 0, SGD on rank 1" in told["class"]
    assert (
        "Dropout(p=0.5, inplace=False) on rank 0, (1): Dropout(p=0.1, inplace=False) on rank 1"
        in told["dropout"]
    ), told["dropout"]
    assert "lr: 0.2 on rank 0, 0.1 on rank 1" in told["changed"], told["changed"]
    sizes = (
        "SGD (1 tensors), but rank 0 comes with the parameters of SGD (2 tensors)"
        if strategy == "ddp_sharded"
        else "bias=True) on rank 0, Lin"
    )
    assert sizes in told["size"], told["size"]


def test_unlike_constants_of_the_loss_are_named_with_their_value_on_each_rank(found) -> None:
    _, cases = found
    told, warned = cases["began"]
    assert (
        told == "ok"
        and len(warned) == 1
        and "a factor of the loss is not the same on all ranks" in warned[0]
    )
    words = "the ranks do not train with the same loss: 0.4 on rank 0, 0.3 on rank 1"
    assert words in cases["factor"][0], cases["factor"]
