"""Parameters of unusual kinds, and calls of unusual forms, under every strategy: each is exact
against one process, or refused with a remedy.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "kinds_of_parameters.py"
NO_DIMENSION = (
    "has no dimension, and strategy='fsdp' divides dim 0: make it a tensor of one element"
)
SHARED = "blocks.0 and blocks.1 of Net share a parameter, and would be on different ranks: choose"
COMPILED_3 = "Net is compiled (torch.compile), and DeepSpeed's hooks of stage 3 can't be. Leave"
COMPILED = ("compiled before", "compiled after", "in place before", "in place after")
UNCOMPILED = (
    *("plain", "no dimension", "one element", "empty", "complex", "transposed", "channels_last"),
    *("tied head", "tied blocks", "shared layer", "adapters", "frozen blocks"),
    *("frozen without a dimension", "frozen complex"),
    *("forward called", "inference first", "no_grad first"),
)
REFUSED = {
    "fsdp": {
        "no dimension": NO_DIMENSION,
        "frozen without a dimension": NO_DIMENSION,
        "empty": "has no elements, and torch's engine can't reduce its gradient under",
        "complex": "blocks.1.special is complex64 and blocks.1.down.bias is float32. Under",
    },
    "pipeline": {"tied blocks": SHARED, "shared layer": SHARED},
    "deepspeed": {
        "complex": "is complex, which DeepSpeed's flat parts can't have. Keep it as torch.view",
        "empty": "has no elements, which DeepSpeed's flat parts can't have. Freeze it",
    },
    "deepspeed_stage_3": {
        "complex": "is complex, which DeepSpeed's flat parts can't have. Keep it as torch.view",
        "empty": "has no elements, which DeepSpeed's flat parts can't have. Freeze it",
        **dict.fromkeys(COMPILED, COMPILED_3),
    },
}
FEW = {
    "fsdp": ("transposed", "channels_last", "tied blocks", "adapters", "empty", "complex"),
    "deepspeed": ("no dimension", "channels_last", "complex", "inference first"),
}
ON_CALLS = {"fsdp": ("shared layer", "forward called", "inference first")}


def judge(strategy: str, ranks: int, kinds: tuple[str, ...]) -> None:
    """Each of these is exact, or refused as is expected."""
    found = fork_script(SCRIPT, strategy, ranks, "{}", *kinds, timeout_s=300).json()
    assert {*found} == {*kinds}
    wanted = REFUSED.get(strategy, {})
    for kind, outcome in found.items():
        if kind in wanted:
            assert wanted[kind] in str(outcome), (kind, outcome)
        else:
            assert isinstance(outcome, float) and outcome < 2e-5, (kind, outcome)


@pytest.mark.parametrize(
    ("strategy", "kinds"), [*FEW.items(), *ON_CALLS.items()], ids=lambda one: str(one)[:12]
)
def test_some_kinds(strategy, kinds):
    judge(strategy, 2, kinds)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("strategy", ["fsdp", "pipeline", "deepspeed", "deepspeed_stage_3"])
def test_all_kinds(strategy, ranks):
    if strategy == "pipeline" and ranks == 3:
        pytest.skip("the models have two blocks")
    judge(strategy, ranks, UNCOMPILED)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed", "deepspeed_stage_3"])
def test_compiled_models(strategy):
    judge(strategy, 2, COMPILED)
