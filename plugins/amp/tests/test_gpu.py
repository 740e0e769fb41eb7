"""The same on a GPU."""

from __future__ import annotations

import pytest
import torch
from torchbus import session

from .autocast_by_hand import MIXED, Make, adam, by_hand, net, sgd, unchanged

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize(("precision", "dtype"), MIXED)
def test_equals_the_loop_by_hand_on_a_gpu(precision: str, dtype: torch.dtype, make: Make) -> None:
    with session(precision=precision, devices=1):
        found = unchanged(make, model=net().cuda())
    assert torch.equal(found[0].cpu(), by_hand(make, dtype, device="cuda")[0].cpu())


def test_an_overflow_on_a_gpu_skips_optimizer_and_scheduler() -> None:
    with session(precision="16-mixed", devices=1):
        found = unchanged(sgd, overflow=3, model=net().cuda())
    expected = by_hand(sgd, torch.float16, overflow=3, device="cuda")
    assert torch.equal(found[0].cpu(), expected[0].cpu())
    assert found[1] == expected[1] < 8


@pytest.mark.parametrize(
    ("precision", "dtype"), [("16-true", torch.float16), ("bf16-true", torch.bfloat16)]
)
def test_true_precision_on_a_gpu(precision: str, dtype: torch.dtype) -> None:
    with session(precision=precision, devices=1):
        found = unchanged(sgd, model=net().cuda())
    assert found[0].dtype == dtype
    assert found[0].isfinite().all()
