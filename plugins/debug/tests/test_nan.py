"""Where NaN comes from: the rank, the batch, the layer, and the batch in a file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import UsageError

from torchbus_debug import NonFinite
from torchbus_testing.forking import fork_script
from torchbus_testing.state import assert_torch_unchanged, torch_state


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Root(nn.Module):
    """Finite at 0, and its gradient is not."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * x).sum(1, keepdim=True).sqrt()


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log()


class Loss:
    """A loss that is infinite in the third batch."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x.square().mean() * (float("inf") if self.calls == 3 else 1.0)


def mean(x: Tensor) -> Tensor:
    return x.square().mean()


def train(layers: list[nn.Module], x: Tensor, loss: Any = mean, **options: Any) -> nn.Module:
    model = nn.Sequential(*layers)
    for part in model.modules():
        if isinstance(part, nn.Linear):
            nn.init.ones_(part.weight)
    with session(stop_on_nan=True, **options):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for (a,) in DataLoader(TensorDataset(x), batch_size=4):
            optimizer.zero_grad()
            loss(model(a)).backward()
            optimizer.step()
    return model


def samples(wrong: float | None = None) -> Tensor:
    x = torch.ones(16, 2)
    if wrong is not None:
        x[9] = wrong
    return x


@pytest.mark.parametrize(
    ("layers", "wrong", "loss", "words"),
    [
        ([nn.Linear(2, 1)], float("nan"), mean, "the loss is nan.* the input of the model"),
        (
            [nn.Linear(2, 2, bias=False), Log(), nn.Linear(2, 1)],
            0.0,
            mean,
            r"the loss is (-?inf|nan).* the output of 1 \(Log\)",
        ),
        (
            [nn.Linear(2, 2, bias=False), Root(), nn.Linear(1, 1)],
            0.0,
            mean,
            r"a gradient is not finite.* the gradient of the output of 0 \(Linear\)",
        ),
        ([nn.Linear(2, 1)], None, Loss(), "the loss is inf.* all layers have finite outputs"),
    ],
)
def test_the_first_that_is_not_finite(
    layers: list[nn.Module], wrong: float | None, loss: Any, words: str
) -> None:
    before, drawn = torch_state(), torch.get_rng_state()
    with pytest.raises(NonFinite, match=words) as caught:
        train(layers, samples(wrong), loss)
    text = str(caught.value)
    assert "in step 3, on rank 0, in batch 3 of the loader over TensorDataset." in text
    assert all(p.isfinite().all() for layer in layers for p in layer.parameters())
    path = re.search(r"The batch is in (.*)$", text)
    assert path is not None and Path(path[1]).parent == Path(os.getcwd(), "torchbus-nan")
    (batch,) = torch.load(path[1], weights_only=True)["batches"]
    assert torch.equal(batch[0].nan_to_num(), samples(wrong)[8:12].nan_to_num())
    assert_torch_unchanged(before)
    assert not torch.equal(drawn, torch.get_rng_state()), "the loader draws a seed"


def test_a_batch_of_an_open_window_is_named() -> None:
    with pytest.raises(NonFinite, match="in step 1, on rank 0, in batch 3 of"):
        train(
            [nn.Linear(2, 2, bias=False), Root(), nn.Linear(1, 1)],
            samples(0.0),
            accumulate_grad_batches=4,
        )


def test_overflows_of_a_loss_scale_are_none() -> None:
    train([nn.Linear(2, 1)], samples(), precision="16-mixed")
    with pytest.raises(NonFinite, match="the loss is nan"):
        train([nn.Linear(2, 1)], samples(float("nan")), precision="16-mixed")


def test_a_loop_without_a_loader_and_sparse_gradients() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    with session(stop_on_nan=True):
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            found = table(torch.tensor([step, step]))
            if step < 2:
                found.sum().backward()
                optimizer.step()
                continue
            found.sum().backward(torch.tensor(float("inf")))
            with pytest.raises(NonFinite, match="in step 3, on rank 0, in batches that the script"):
                optimizer.step()
    assert table.weight.isfinite().all()


def test_switched_off() -> None:
    with session(stop_on_nan=False):
        model = nn.Linear(2, 1)
        (model(samples(float("nan"))).mean()).backward()
    with pytest.raises(UsageError, match="True or False"):
        session(stop_on_nan="yes")


RANKS = """
import os, sys, torch
from torchbus import session
from torch.utils.data import DataLoader, TensorDataset
from torchbus_debug import NonFinite
os.chdir(sys.argv[2])
x = torch.ones(24, 2)
x[11] = float("nan")
seen = []
try:
    with session(strategy=sys.argv[1], devices=3, launch="fork", stop_on_nan=True) as s:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
        optimizer = torch.optim.Adam(model.parameters())
        for (a,) in DataLoader(TensorDataset(x), batch_size=2):
            optimizer.zero_grad()
            model(a).mean().backward()
            try:
                optimizer.step()
            except NonFinite:
                pass
except NonFinite as error:
    print(error)
print([bool(p.isfinite().all()) for p in model.parameters()])
"""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_rank_that_is_concerned_is_named_by_all(strategy: str) -> None:
    result = fork_script(RANKS, strategy, os.getcwd())
    assert "on rank 2, in batch 2 of the loader over TensorDataset" in result.stdout + result.stderr
    assert "the input of the model" in result.stdout + result.stderr
    assert [path.name for path in Path("torchbus-nan").iterdir()] == ["step2-rank2.pt"]


TOGETHER = """
import json, os, re, sys, torch
from torchbus import session
from torch.utils.data import DataLoader, TensorDataset
from torchbus_debug import NonFinite
os.chdir(sys.argv[1])
class Log(torch.nn.Module):
    def forward(self, x):
        return x.log()
class Root(torch.nn.Module):
    def forward(self, x):
        return (x * x).sum(1, keepdim=True).sqrt().expand(-1, 4)
def run(strategy, devices, part, options):
    x = torch.ones(24, 4)
    x[11] = 0
    with session(strategy=strategy, devices=devices, launch="fork", stop_on_nan=True, **options):
        layers = torch.nn.Linear(4, 4, bias=False), part(), torch.nn.Linear(4, 1)
        model = torch.nn.Sequential(*layers)
        for parameter in model.parameters():
            torch.nn.init.ones_(parameter)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        for (a,) in DataLoader(TensorDataset(x), batch_size=4):
            optimizer.zero_grad()
            model(a).mean().backward()
            optimizer.step()
seen = []
for strategy, devices, options in json.loads(sys.argv[2]):
    for part in (Log, Root):
        try:
            run(strategy, devices, part, options)
        except Exception as error:
            seen.append((strategy, devices, str(error)))
print(json.dumps(seen))
"""


def test_layers_of_models_that_ranks_call_together() -> None:
    cases = [
        ("fsdp", 3, {}, 2, 2, 1),
        ("tp", 2, {"plan": {"0": "colwise", "2": "rowwise"}}, 0, 0, 3),
        ("pipeline", 2, {"microbatches": 2}, 1, 0, 3),
        ("dp", 2, {}, 1, 1, 3),
    ]
    result = fork_script(TOGETHER, os.getcwd(), json.dumps([one[:3] for one in cases]))
    assert result.ok(), result
    found = json.loads(result.stdout)
    expected = [
        f"on rank {rank}, in batch {batch} of the loader over TensorDataset. The first that is not"
        f" finite: the {layer}. The batch"
        for *_, in_log, in_root, batch in cases
        for rank, layer in ((in_log, "output of 1 (Log)"), (in_root, GRADIENT))
    ]
    assert [words in one[2] for words, one in zip(expected, found, strict=True)] == [True] * 8, (
        found
    )


GRADIENT = "gradient of the output of 0 (Linear)"

CHECKS = """
import json, torch
from torchbus import session
def now():
    return [torch.is_anomaly_enabled(), torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(), torch.backends.cudnn.benchmark]
torch.backends.cudnn.benchmark = True
found = [now()]
for options in ({"detect_anomaly": True}, {"deterministic": True}, {"deterministic": "warn"}):
    with session(strategy="ddp", devices=2, launch="fork", **options) as s:
        both = s.all_gather_object(now())
        assert both[0] == both[1]
        found += both[:1]
    found.append(now())
print(json.dumps(found))
"""


def test_checks_of_torch_are_on_inside_the_block() -> None:
    result = fork_script(CHECKS)
    assert result.ok(), result
    off = [False, False, False, True]
    assert json.loads(result.stdout) == [
        off,
        [True, False, False, True],
        off,
        [False, True, False, False],
        off,
        [False, True, True, False],
        off,
    ]


def test_an_anomaly_in_backward() -> None:
    with (
        pytest.warns(UserWarning, match="Error detected in SqrtBackward0"),
        pytest.raises(RuntimeError, match="SqrtBackward0' returned nan"),
        session(detect_anomaly=True),
    ):
        x = torch.zeros(1, requires_grad=True)
        (x.sqrt() * 0).sum().backward()


@pytest.mark.parametrize("options", [{"deterministic": "no"}, {"detect_anomaly": 1}])
def test_bad_input(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        session(**options)
