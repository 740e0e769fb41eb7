"""``torchbus advise`` against what ranks keep, and from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
RANKS = (2, 4)
PLANS = {
    "ddp": "ddp",
    "ddp_sharded": "ddp_sharded",
    "ddp_sharded, shard_gradients": "ddp_sharded, gradients",
    "fsdp": "fsdp",
}
WIDTH = 64
CHECKPOINTED = 'ddp + activation_checkpointing="auto"'

MEASURE = f"""
import json, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from memory import DIVIDED, kept

model = sys.argv[1]
found = {{
    strategy: [kept(strategy, ranks, model, {WIDTH}) for ranks in {RANKS}] for strategy in DIVIDED
}}
print(json.dumps(found))
"""
TRAIN = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from memory import one_step

model, optimizer = one_step(sys.argv[1], {WIDTH})
"""
HELD = Path(__file__).parent / "scripts" / "advise_held.py"
ADVISE = """
import sys
from torchbus_cli.main import main
sys.exit(main(["advise", *sys.argv[1:]]))
"""


def advised(*words: str, folder: Path) -> dict[str, Any]:
    result = fork_script(ADVISE, "--json", *words, cwd=folder, timeout_s=250)
    assert result.ok(), result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def row(told: dict[str, Any], plan: str, ranks: int) -> dict[str, Any]:
    found: dict[str, Any] = next(
        one for one in told["rows"] if (one["plan"], one["ranks"]) == (plan, ranks)
    )
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "model",
    [
        "conv",
        pytest.param("mlp", marks=pytest.mark.slow),
        pytest.param("transformer", marks=pytest.mark.slow),
    ],
)
def test_predicted_bytes_are_those_that_ranks_keep(model: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    measured = json.loads(fork_script(MEASURE, model, timeout_s=250).stdout)
    told = advised("--tensors", "fake", "train.py", model, folder=tmp_path)
    buffers = told["facts"]["32"]["buffer_bytes"]
    for strategy, plan in PLANS.items():
        for ranks, kept in zip(RANKS, measured[strategy], strict=True):
            needed = row(told, plan, ranks)["bytes"]
            predicted = {
                "parameters": needed["parameters"] - buffers,
                "gradients": needed["gradients"],
                "optimizer state": needed["states"],
            }
            assert predicted == pytest.approx(kept, rel=0.01), (strategy, ranks)


PEAK = """
import resource, sys
from torchbus_cli.main import main
status = main(["advise", "--json", *sys.argv[1:]])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_seven_billion_parameters_need_no_machine_that_holds_them(tmp_path: Path) -> None:
    script = ROOT / "examples" / "transformer_7b.py"
    result = fork_script(PEAK, "--devices", "8", script, cwd=tmp_path, timeout_s=1100)
    assert result.ok()
    told, peak_bytes = json.loads(result.stdout), int(result.stderr.splitlines()[-1])
    assert peak_bytes < 8 * 2**30
    layers, width, hidden, tokens = 32, 4096, 11008, 32000
    block = 4 * width * width + 3 * width * hidden + 2 * width
    count = layers * block + 2 * tokens * width + width
    ddp, fsdp = (row(told, plan, 8) for plan in ("ddp", "fsdp"))
    assert (ddp["bytes"]["parameters"], ddp["fits"], fsdp["fits"]) == (4 * count, False, True)
    assert fsdp["bytes"]["parameters"] == 4 * count / 8
    assert "not run with real values" in told["notes"][0]
    assert 'strategy="fsdp"' in told["choices"]["8"]["call"]


@pytest.mark.timeout(400)
def test_activations_under_checkpointing_are_those_that_a_session_holds(tmp_path: Path) -> None:
    """Checkpointed, one block of the four is held at a time, beside what is outside of blocks."""
    (tmp_path / "train.py").write_text(TRAIN)
    every = int(fork_script(HELD, BENCHMARKS, WIDTH, "{}", cwd=tmp_path).stdout)
    options = json.dumps({"activation_checkpointing": "auto"})
    outside = int(fork_script(HELD, BENCHMARKS, WIDTH, options, cwd=tmp_path).stdout)
    told = advised(
        "--tensors", "fake", "--devices", "2", "train.py", "transformer", folder=tmp_path
    )
    whole, again = (row(told, plan, 2)["bytes"]["activations"] for plan in ("ddp", CHECKPOINTED))
    assert outside < every / 2
    assert whole == pytest.approx(every, rel=0.1)
    assert again == pytest.approx(outside + (every - outside) / 4, rel=0.1)
