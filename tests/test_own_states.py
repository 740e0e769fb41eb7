"""What each rank has for itself in a checkpoint: a run that goes on from one made at an odd moment ends bit for bit as the run that made it."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchbus.testing import fork_script

SCRIPT = """
import json, sys, warnings
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchbus import session

warnings.simplefilter("ignore")
DATA = torch.randn(61, 16, generator=torch.Generator().manual_seed(1))


def train(s, path, save_at, by_hand, summed):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Tanh(), nn.Linear(32, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    num_batches = 0
    if not save_at:
        s.load(path)
    for epoch in s.epochs(3):
        for number, x in enumerate(DataLoader(DATA if summed else DATA[:40], batch_size=3 if summed else 2, shuffle=True)):
            opens = by_hand and number % 4 < 3
            with s.accumulating(opens):
                loss = (model(x) - x).square()
                (loss.sum() / 48 if summed else loss.mean()).backward()
            if not opens:
                optimizer.step()
                optimizer.zero_grad()
            num_batches += 1
            if num_batches == save_at:
                s.save(path)
    return model.state_dict()["0.weight"].clone()


def run(name, save_at, by_hand, summed, **options):
    with session("checkpoint", "accumulate", accelerator="cpu", launch="fork", **{"strategy": "ddp", "devices": 2} | options) as s:
        return train(s, name, save_at, by_hand, summed)


def apart(save_at, by_hand=False, summed=False, **options):
    name = f"{sorted(options.items())}{by_hand}{summed}{save_at}"
    return float((run(name, save_at, by_hand, summed, **options) - run(name, 0, by_hand, summed, **options)).abs().max())


print(json.dumps(CASES))
"""


def apart(tmp_path: Path, cases: str) -> dict[str, float]:
    """How far two runs end from each other, by case."""
    return dict(fork_script(SCRIPT.replace("CASES", cases), cwd=tmp_path, timeout_s=280).json())


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "algorithms", [("powersgd", "bytegrad"), pytest.param(("local_sgd", "low_precision_decentralized", "async"), marks=pytest.mark.slow)]
)
def test_what_compressed_gradients_and_averaged_models_remember(tmp_path: Path, algorithms: tuple[str, ...]) -> None:
    """In the middle of an epoch, and of a period of averaging."""
    found = apart(tmp_path, f"{{one: apart(18, gradient_algorithm=one) for one in {algorithms!r}}}")
    assert found == dict.fromkeys(algorithms, 0.0)


@pytest.mark.timeout(300)
def test_windows_that_are_open(tmp_path: Path) -> None:
    """The plugin's, and the loop's own under ``s.accumulating``; a sum, which a run that goes on with a ragged batch must not take for a mean."""
    window = "accumulate_grad_batches=4"
    cases = f"{{'window': apart(13, {window}), 'by hand': apart(14, True), 'sum': apart(6, summed=True, devices=3, {window}) < 1e-6}}"
    assert apart(tmp_path, cases) == {"window": 0.0, "by hand": 0.0, "sum": True}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", ["strategy='ddp_sharded', accumulate_grad_batches=4", "strategy='fsdp', accumulate_grad_batches=4"])
def test_windows_that_are_open_where_states_are_divided(tmp_path: Path, options: str) -> None:
    assert apart(tmp_path, f"{{'window': apart(13, {options})}}") == {"window": 0.0}
