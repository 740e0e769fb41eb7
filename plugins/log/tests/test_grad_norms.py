"""Norms of gradients by layer or parameter, with which the optimizer steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import UsageError

from torchbus_testing.recorder import RecordingLogger


@pytest.mark.parametrize("parts", ["layer", "parameter"])
def test_norms_at_log_points_after_clipping(parts):
    hears, expected = RecordingLogger(), {}
    net = nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 1), nn.Linear(1, 1))
    net[2].requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    options = {"log_grad_norms": parts, "log_every_n_steps": 2, "gradient_clip_val": 0.1}
    with session(strategy=None, logger=hears, **options) as s:

        @s.on("gradients_ready")
        def compute(optimizer):
            for layer in (0, 1):
                pair = [net[layer].weight.grad, net[layer].bias.grad]
                norms = [nn.utils.get_total_norm(ones).item() for ones in (pair, pair[:1])]
                expected[layer, s.global_step + 1] = norms

        for (x,) in DataLoader(TensorDataset(torch.arange(10.0)), batch_size=2):
            optimizer.zero_grad()
            net(x[:, None]).square().mean().backward()
            optimizer.step()
    for layer in (0, 1):
        name = f"grad_norm/net.{layer}" + (".weight" if parts == "parameter" else "")
        place = parts == "parameter"
        right = [(step, pytest.approx(expected[layer, step][place])) for step in (2, 4)]
        assert hears.of(name) == right
    assert not [name for _, _, values, _ in hears.lines for name in values if "net.2" in name]


def test_two_optimizers_and_names_of_groups():
    hears = RecordingLogger()
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    groups = [{"params": [one.weight], "name": "w"}, {"params": [one.bias], "name": "b", "lr": 0.5}]
    optimizers = [torch.optim.SGD(groups, lr=0.1), torch.optim.SGD(two.parameters(), lr=0.1)]
    with session(strategy=None, logger=hears, log_grad_norms="layer", log_every_n_steps=1):
        for _ in range(3):
            for model, optimizer in zip((one, two), optimizers, strict=True):
                optimizer.zero_grad()
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
    for name in ("grad_norm/one", "grad_norm_2/two"):
        assert hears.of(name) == [(step, pytest.approx(2**0.5)) for step in (1, 2, 3)]
    assert {value for _, value in hears.of("lr/b")} == {0.5} and hears.of("lr/w")


def test_a_wrong_word():
    with pytest.raises(UsageError, match="log_grad_norms='all' is unknown: use 'layer' or"):
        session(logger=RecordingLogger(), log_grad_norms="all")
