"""The table of models: shapes, parameters and operations of the first step."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session


class Net(torch.nn.Module):
    """A part under two names, a part that is frozen, and one that returns two tensors."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 4)
        self.again = self.body
        self.cell = torch.nn.LSTMCell(4, 3)
        self.head = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False), torch.nn.Tanh())
        self.unused = torch.nn.Linear(4, 9)
        self.head.requires_grad_(False)

    def forward(self, x, *, scale):
        h, _ = self.cell(self.again(self.body(x)) * scale)
        return self.head(h)


def train(model, run, steps=2, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session(strategy=None, **options):
        for (x,) in DataLoader(TensorDataset(torch.randn(8 * steps, 4)), batch_size=8):
            optimizer.zero_grad()
            run(x).square().mean().backward()
            optimizer.step()


def lines(capsys):
    """The cells of each line, by the line's first word."""
    out = [line for line in capsys.readouterr().out.splitlines() if "throughput:" not in line]
    cells = [[cell for cell in line.split("  ") if cell] for line in out]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in cells}


def test_a_model_and_its_parts(capsys):
    model = Net()
    train(model, lambda x: model(x, scale=torch.ones(())), model_summary=True)
    found = lines(capsys)
    linear, cell, head = 2 * 8 * 4 * 4, 2 * 8 * (4 + 3) * 12, 2 * 8 * 3 * 2
    assert found == {
        "module": ["class", "in", "out", "parameters", "trainable", "forward FLOPs"],
        "model": ["Net", "[8, 4], []", "[8, 2]", "179", "173", f"{2 * linear + cell + head:,}"],
        "body": ["Linear", "[8, 4]", "[8, 4]", "20", "20", f"{2 * linear:,}"],
        "again": ["the same as body"],
        "cell": ["LSTMCell", "[8, 4]", "[8, 3], [8, 3]", "108", "108", f"{cell:,}"],
        "head": ["Sequential", "[8, 3]", "[8, 2]", "6", "0", f"{head:,}"],
        "unused": ["Linear", "-", "-", "45", "45", "-"],
    }
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


def test_deeper(capsys):
    model = Net()
    train(model, lambda x: model(x, scale=1.0), model_summary=2)
    assert lines(capsys)["0"] == ["Linear", "[8, 3]", "[8, 2]", "6", "0", "96"]


def test_several_models_and_their_names(capsys):
    encoder, decoder = torch.nn.Linear(4, 3), torch.nn.Linear(3, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    with session(strategy=None, model_summary=True):
        for _ in range(2):
            decoder(encoder(torch.ones(2, 4))).sum().backward()
            optimizer.step()
    found = lines(capsys)
    assert found["encoder"][:3] == ["Linear", "[2, 4]", "[2, 3]"]
    assert found["decoder"][:3] == ["Linear", "[2, 3]", "[2, 4]"]
    assert len(found) == 3


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_models(capsys, in_place):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    if in_place:
        model.compile(backend="eager")
    run = model if in_place else torch.compile(model, backend="eager")
    train(model, run, model_summary=True)
    found = lines(capsys)
    name = "model" if in_place else "run"
    shown = ["-", "-"] if in_place else ["[8, 4]", "[8, 3]"]
    row = found.get(name) or found.get("OptimizedModule") or found["Sequential"]
    assert row == ["Sequential, compiled", *shown, "15", "15", "-"]
    assert found["0"] == ["Linear", "-", "-", "15", "15", "-"]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def test_a_forward_that_fails_leaves_nothing(capsys):
    class Failing(torch.nn.Module):
        calls = 0

        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 3)

        def forward(self, x):
            self.calls += 1
            if self.calls == 1:
                raise ValueError("the first batch is bad")
            return self.inner(x)

    model = Failing()

    def run(x):
        try:
            return model(x)
        except ValueError:
            return model(x)

    train(model, run, model_summary=True)
    assert lines(capsys)["inner"][:3] == ["Linear", "[8, 4]", "[8, 3]"]
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_false_prints_nothing(capsys):
    model = torch.nn.Linear(4, 3)
    train(model, model, model_summary=False)
    assert capsys.readouterr().out == ""
