"""Mixed precision against autocast and GradScaler written by hand, bit for bit, on one rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torchbus import session

from torchbus_amp.plugin import Precision
from torchbus_testing.models import parameter_values

from .autocast_by_hand import MIXED, Make, adam, batches, by_hand, net, sgd, unchanged


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("closures", [False, True])
@pytest.mark.parametrize(("precision", "dtype"), MIXED)
def test_equals_autocast_and_gradscaler_by_hand(
    precision: str, dtype: torch.dtype, make: Make, closures: bool
) -> None:
    with session(precision=precision):
        found = unchanged(make, closures=closures)
    expected = by_hand(make, dtype)
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1]


@pytest.mark.parametrize("closures", [False, True])
def test_an_overflow_skips_optimizer_and_scheduler(closures: bool) -> None:
    with session(precision="16-mixed"):
        found = unchanged(sgd, overflow=3, closures=closures)
    expected = by_hand(sgd, torch.float16, overflow=3)
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1] < 8


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize(("precision", "dtype"), MIXED)
def test_a_compiled_model(precision: str, dtype: torch.dtype) -> None:
    for early in (False, True):
        compiled = torch.compile(net(), backend="eager") if early else None
        with session(precision=precision):
            found = unchanged(sgd, model=compiled or torch.compile(net(), backend="eager"))
        assert torch.equal(found[0], by_hand(sgd, dtype)[0])


@pytest.mark.share(2)
@pytest.mark.parametrize(("precision", "dtype"), MIXED)
def test_a_loop_with_its_own_is_left_alone(precision: str, dtype: torch.dtype) -> None:
    expected = by_hand(sgd, dtype)
    with session(precision=precision) as s:
        found = by_hand(sgd, dtype)
        model = net()
        _optimizer = sgd(model.parameters())
        assert (
            "no loss scaling: the loop uses its own GradScaler" in " ".join(s.explain().split())
        ) == (dtype == torch.float16)
        with torch.autocast("cpu", dtype):
            assert model(batches()[0]).dtype == dtype
        assert "unchanged: the loop uses autocast itself" in " ".join(s.explain().split())
    assert torch.equal(found[0], expected[0])


def test_each_optimizer_has_its_own_scale() -> None:
    with session(precision="16-mixed") as s:
        one, two = net(), net()
        first, second = sgd(one.parameters()), sgd(two.parameters())
        for model, optimizer, factor in ((one, first, 1e38), (two, second, 1.0)):
            optimizer.zero_grad()
            (model(batches()[0]).square().mean() * factor).backward()
            optimizer.step()
        assert torch.equal(parameter_values(one), parameter_values(net()))
        assert not torch.equal(parameter_values(two), parameter_values(net()))
        text = " ".join(s.explain().split())
        assert "loss scale 32768" in text
        assert "loss scale 65536" in text
        assert "forward under float16 autocast" in text


def test_the_scale_can_be_kept(tmp_path: Path) -> None:
    plugin = Precision("16-mixed")
    with session(plugin):
        model = net()
        optimizer = sgd(model.parameters())
        (model(batches()[0]).square().mean() * 1e38).backward()
        optimizer.step()
        torch.save(plugin.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    for late in (False, True):
        again = Precision("16-mixed")
        with session(again):
            early = None if late else sgd(net().parameters())
            again.load_state_dict(state)
            _optimizer = early or sgd(net().parameters())
            assert again.state_dict()["scales"][0]["scale"] == 32768.0
