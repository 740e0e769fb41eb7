"""What each rank has for itself in a checkpoint: a run that goes on from one made at an odd moment
ends bit for bit as the run that made it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "own_states.py"


def apart(tmp_path: Path, cases: str) -> dict[str, float]:
    """How far two runs end from each other, by case."""
    return dict(fork_script(SCRIPT, cases, cwd=tmp_path, timeout_s=280).json())


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "algorithms",
    [
        ("powersgd", "bytegrad"),
        pytest.param(("local_sgd", "low_precision_decentralized", "async"), marks=pytest.mark.slow),
    ],
)
def test_what_compressed_gradients_and_averaged_models_remember(
    tmp_path: Path, algorithms: tuple[str, ...]
) -> None:
    """In the middle of an epoch, and of a period of averaging."""
    found = apart(tmp_path, f"{{one: apart(18, gradient_algorithm=one) for one in {algorithms!r}}}")
    assert found == dict.fromkeys(algorithms, 0.0)


@pytest.mark.timeout(300)
def test_windows_that_are_open(tmp_path: Path) -> None:
    """The plugin's, and the loop's own under ``s.accumulating``; a sum, which a run that goes on
    with a ragged batch must not take for a mean.
    """
    window = "accumulate_grad_batches=4"
    cases = f"{{'window': apart(13, {window}), 'by hand': apart(14, True), 'sum': apart(6, summed=True, devices=3, {window}) < 1e-6}}"
    assert apart(tmp_path, cases) == {"window": 0.0, "by hand": 0.0, "sum": True}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "options",
    [
        "strategy='ddp_sharded', accumulate_grad_batches=4",
        "strategy='fsdp', accumulate_grad_batches=4",
    ],
)
def test_windows_that_are_open_where_states_are_divided(tmp_path: Path, options: str) -> None:
    assert apart(tmp_path, f"{{'window': apart(13, {options})}}") == {"window": 0.0}
