"""Sums over a constant, over each rank's samples or over those of all ranks, in windows and at the
ragged end: every step has the gradient of one process. So have means over a mask, in windows of one
batch too.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "constant_divisors.py"
EPOCHS = [[26, 1], [26, 3], [28, 1], [20, 2], [18, 2]]  # samples, window
TWO = {"strategy": "ddp", "devices": 2, "epochs": EPOCHS}
CASES = {
    "one process": {"devices": 1, "epochs": [[14, 3], [13, 1], [26, 3], [20, 2]]},
    "each rank's": TWO,
    "all ranks', in windows": TWO | {"batch": "global", "epochs": [[24, 3], *EPOCHS]},
    "each rank's, fsdp": TWO | {"strategy": "fsdp"},
    "all ranks', in windows, fsdp": TWO
    | {"strategy": "fsdp", "batch": "global", "epochs": [[24, 3], *EPOCHS]},
}


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if "fsdp" in name else name for name in CASES],
)
def test_every_step_has_the_gradient_of_one_process(name: str) -> None:
    found = fork_script(SCRIPT, json.dumps(CASES[name]), timeout_s=110).json()
    assert len(found) == 2 and max(found.values()) < 1e-12, found


@pytest.mark.parametrize("devices", [2, 3])
def test_a_sum_over_a_number_that_one_process_knows_is_one_over_all_ranks(devices: int) -> None:
    found = fork_script(SCRIPTS / "constants_of_all.py", str(devices), timeout_s=110)
    assert max(found.json().values()) < 1e-12, found.stdout
    assert not found.stderr, found.stderr


LOOP = """
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

net = torch.nn.Linear(5, 3)
data = DataLoader(TensorDataset(torch.randn(32, 5), torch.arange(32) % 3), 16)
with session(strategy="ddp", devices=2, launch="fork", batch="global", {options}):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for rows, labels in data:
        out = net(rows)
        ({loss}).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "options", "warning"),
    [
        (
            "cross_entropy(out, labels) + out.square().sum() / 16",
            "accumulate_grad_batches=2",
            "a term of the loss is a sum over samples, and the others",
        ),
        (
            "cross_entropy(out, labels, reduction='sum') / 16 + net.weight.square().sum()",
            "accumulate_grad_batches=2",
            "the loss adds a penalty of the parameters to a sum over samples",
        ),
        (
            "torch.einsum('bc,bc->', out, out.detach()) / 16",
            "accumulate_grad_batches=1",
            "the loss is divided by 16, a number of samples of all ranks",
        ),
    ],
)
def test_a_constant_whose_meaning_is_open_is_warned_of(
    loss: str, options: str, warning: str
) -> None:
    found = fork_script(LOOP.format(loss=loss, options=options), timeout_s=110)
    assert warning in found.stderr


BY_SOURCE = """
import contextlib, json, torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)
g = torch.Generator().manual_seed(0)
data = TensorDataset(torch.randn(50, 3, generator=g), torch.randn(50, 1, generator=g))

def shrink(image):
    _, c, h, w = image.shape
    high, wide = c * (h - 1) * w, c * h * (w - 1)
    down = (image[:, :, 1:] - image[:, :, :-1]).square().sum()
    across = (image[:, :, :, 1:] - image[:, :, :, :-1]).square().sum()
    return 2 * (down / high + across / wide) / image.size(0)

def image(x):
    return x[:, :1, None, None] * net.weight.expand(8, 3)[None, None]

CASES = {cases}
found = {{}}
for name, loss_of in CASES.items():
    for ranks in (1, {ranks}):
        torch.manual_seed(0)
        block = session(strategy="ddp", devices={ranks}, accelerator="cpu", launch="fork", batch="global")
        with block if ranks > 1 else contextlib.nullcontext():
            net = torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
            for x, y in DataLoader(data, 8):
                loss = loss_of(x, net(x) - y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        found.setdefault(name, []).append([*net.weight[0].tolist(), loss.item()])
print(json.dumps(found))
"""


LENGTHS = """{
    "textbook": lambda x, error: error.square().sum() / (2 * len(x)),
    "half": lambda x, error: 0.5 * error.square().sum() / len(x),
    "in front": lambda x, error: 0.5 / len(x) * error.square().sum(),
    "in a function": lambda x, error: cost(error),
    "minus": lambda x, error: -1 * torch.sigmoid(error).log().sum(),
    "total variation": lambda x, error: error.square().mean() + shrink(image(x)),
}

def cost(error):
    m = error.shape[0]
    return 1 / (2 * m) * error.square().sum()
"""
A_CONSTANT = """{"a constant": lambda x, error: error.square().sum() / 8}
spread = [3.0 / (2 * 1.5**2), 1.0 / (len(data) - 2)]
"""


@pytest.mark.parametrize("cases", [LENGTHS, A_CONSTANT])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_multiple_of_the_samples_of_a_rank_is_no_number_of_all_samples(
    ranks: int, cases: str
) -> None:
    found = fork_script(BY_SOURCE.format(ranks=ranks, cases=cases)).json()
    for name, (alone, together) in found.items():
        assert together == pytest.approx(alone), name
