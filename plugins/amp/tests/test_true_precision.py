"""Models that are converted as a whole."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor
from torchbus import session
from torchbus.errors import UsageError

from torchbus_testing.models import parameter_values

from .autocast_by_hand import batches, net, sgd


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("16-true", torch.float16), ("bf16-true", torch.bfloat16), ("64-true", torch.float64)],
)
def test_true_precision(precision: str, dtype: torch.dtype) -> None:
    def run(convert: bool) -> Tensor:
        model = net().to(dtype) if convert else net()
        optimizer = sgd(model.parameters())
        for x in batches():
            optimizer.zero_grad()
            output = model(x.to(dtype) if convert else x)
            output = output.float() if convert and dtype != torch.float64 else output
            assert output.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            output.square().mean().backward()
            optimizer.step()
        return parameter_values(model)

    with session(precision=precision):
        found = run(False)
    assert found.dtype == dtype
    assert torch.equal(found, run(True))


@pytest.mark.parametrize("adopted", [False, True])
def test_a_model_that_is_found_too_late_to_be_converted(adopted: bool) -> None:
    with session(precision="bf16-true") as s:
        holder = {"teacher": net(), "student": net()}
        optimizer = sgd(holder["student"].parameters())
        if adopted:
            s.adopt(holder["teacher"])
        target = holder["teacher"](batches()[0]).detach()
        (holder["student"](batches()[0]) - target).square().mean().backward()
        with (
            contextlib.nullcontext()
            if adopted
            else pytest.warns(UserWarning, match=r"Sequential is not converted.*s\.adopt\(model\)")
        ):
            optimizer.step()
        assert next(holder["teacher"].parameters()).dtype == (
            torch.bfloat16 if adopted else torch.float32
        )
        optimizer.step()


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.LBFGS])
def test_optimizers_that_cannot_compute_in_float16(make: Any) -> None:
    with (
        pytest.raises(UsageError, match=f"precision='16-true' with {make.__name__}"),
        session(precision="16-true"),
    ):
        make(net().parameters())
