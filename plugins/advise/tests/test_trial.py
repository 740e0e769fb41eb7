"""What a trial of a script finds, with fake tensors and with real ones."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from torch._subclasses.fake_tensor import FakeTensor

from torchbus_advise.facts import ObservedFacts
from torchbus_advise.trial import TrialOutcome, read_outcome
from torchbus_testing.forking import fork_script

TRIAL = (Path(__file__).parent / "scripts" / "prints_outcome.py").read_text()
MEASURE = Path(__file__).parent / "scripts" / "saved_bytes.py"
LOOP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

{model}
data = TensorDataset({data}, torch.randint(10, (64,)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(9):
    for x, y in DataLoader(data, batch_size=16, shuffle=True, num_workers=2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        torch.save(model.state_dict(), "model.pt")
"""
MLP = "model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))"
CONV = """
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3),
    nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
)
"""
TRANSFORMER = """
layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
encoder = nn.TransformerEncoder(layer, 3)
model = nn.Sequential(nn.Embedding(50, 32), encoder, nn.Flatten(), nn.Linear(32 * 12, 10))
"""
SCRIPTS = {
    "mlp": (MLP, "torch.randn(64, 20)"),
    "conv": (CONV, "torch.randn(64, 3, 16, 16)"),
    "transformer": (TRANSFORMER, "torch.randint(50, (64, 12))"),
}


def trial(folder: Path, script: str, kind: str = "fake", steps: int = 2) -> TrialOutcome:
    (folder / "train.py").write_text(script)
    result = fork_script(TRIAL, kind, steps, cwd=folder)
    assert result.ok(), result.stderr
    return read_outcome(folder / "outcome.json")


def facts(folder: Path, script: str, kind: str = "fake") -> ObservedFacts:
    outcome = trial(folder, script, kind)
    assert outcome.facts is not None, outcome.trace
    return outcome.facts


@pytest.mark.parametrize("name", SCRIPTS)
def test_activations_are_those_that_graphs_hold(name: str, tmp_path: Path) -> None:
    """By an account of its own: hooks that only add up storages."""
    model, data = SCRIPTS[name]
    script = LOOP.format(model=model, data=data)
    found = {kind: facts(tmp_path, script, kind) for kind in ("fake", "real")}
    measured = int(fork_script(MEASURE, cwd=tmp_path).stdout)
    for one in found.values():
        assert one.passes[0].activation_bytes == pytest.approx(measured, rel=0.1)
    assert found["fake"].passes[0] == found["real"].passes[0]
    assert found["fake"].parameters == found["real"].parameters
    assert not (tmp_path / "model.pt").exists()


def test_the_second_step_of_fake_tensors_has_half_the_batch(tmp_path: Path) -> None:
    model, data = SCRIPTS["mlp"]
    found = facts(tmp_path, LOOP.format(model=model, data=data))
    whole, half = found.passes
    assert (whole.samples, half.samples) == (16, 8) and whole.flops == 2 * half.flops
    products = 16 * (20 * 64 + 64 * 10)
    assert whole.flops == 2 * products + 2 * (2 * products) - 2 * 16 * 20 * 64  # no gradient of x
    assert found.loader is not None and (found.loader.batch_size, found.loader.workers) == (16, 2)


VALUES = Path(__file__).parent / "scripts" / "values.py"
LISTS_ONLY_VECTORS = "NYI" in inspect.getsource(FakeTensor.tolist)


@pytest.mark.skipif(LISTS_ONLY_VECTORS, reason="this torch can't list a fake matrix")
def test_what_a_loop_reads_from_fake_tensors_is_plausible(tmp_path: Path) -> None:
    found = facts(tmp_path, VALUES.read_text())
    assert found.steps == 2 and found.loader is None
    assert "answered 1 or True" in found.notes[0] and "train.py" in found.notes[0]
    assert "adam.py" not in found.notes[0] and "sgd.py" not in found.notes[0]


def test_a_gradient_penalty_is_a_hindrance_for_sharding(tmp_path: Path) -> None:
    loop = "model(torch.ones(2, 4)).pow(3).mean().backward(create_graph=True)\noptimizer.step()\n"
    script = "import torch\nmodel = torch.nn.Linear(4, 1)\n"
    script += "optimizer = torch.optim.LBFGS(model.parameters()) if 0 else "
    script += "torch.optim.SGD(model.parameters(), lr=0.1)\n" + loop * 2
    assert facts(tmp_path, script).hindrances == ["backward(create_graph=True)"]


def test_a_script_that_has_a_session_runs_in_that_of_the_trial(tmp_path: Path) -> None:
    model, data = SCRIPTS["mlp"]
    script = "from torchbus import session\ns = session(devices=4, strategy='ddp').start()\n"
    found = facts(tmp_path, script + LOOP.format(model=model, data=data) + "s.close()\n")
    assert "the script's own session(...) was left out" in found.notes


def test_two_optimizers_are_followed_until_both_have_stepped(tmp_path: Path) -> None:
    script = """
import torch
one, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
first, second = (torch.optim.Adam(model.parameters()) for model in (one, other))
for step in range(100):
    other(one(torch.randn(2, 4))).mean().backward()
    first.step()
    if step % 5 == 4:
        second.step()
"""
    found = facts(tmp_path, script)
    assert found.steps == 10 and [optimizer.name for optimizer in found.optimizers] == ["Adam"] * 2
    assert {one.optimizer for one in found.parameters} == {0, 1}
    assert all(one.state_bytes == 2 * one.bytes for one in found.parameters)


@pytest.mark.parametrize(
    ("script", "backwards", "words"),
    [
        ("print('done')", 0, ""),
        ("import torch\ntorch.ones(1, requires_grad=True).sum().backward()", 1, ""),
        ("raise KeyError('no such file')", 0, "KeyError: 'no such file'"),
        ("input('which one? ')", 0, "EOFError"),
        ("import sys\nsys.exit('usage: train.py DATA')", 0, "usage: train.py DATA"),
    ],
)
def test_scripts_without_a_step(script: str, backwards: int, words: str, tmp_path: Path) -> None:
    outcome = trial(tmp_path, script)
    assert outcome.facts is None and outcome.backwards == backwards
    assert words in outcome.error and bool(outcome.error) == bool(words)


def test_an_outcome_survives_its_way_as_json(tmp_path: Path) -> None:
    model, data = SCRIPTS["mlp"]
    outcome = trial(tmp_path, LOOP.format(model=model, data=data))
    outcome.write(tmp_path / "again.json")
    assert read_outcome(tmp_path / "again.json") == outcome
    assert json.loads((tmp_path / "again.json").read_text())["facts"]["steps"] == 2
