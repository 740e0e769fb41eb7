"""Orders of RandomSampler with replacement: at once where they fit, and otherwise step by step."""

from __future__ import annotations

import pytest
import torch

from torchbus_sampler.orders import draws
from torchbus_sampler.orders.kinds import Drawing
from torchbus_sampler.orders.shared import SharedArrays


@pytest.mark.parametrize("whole", [0, 2**26])
def test_an_order_with_replacement_is_one_array_where_it_fits(
    monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    """Beyond that, it is drawn as the pass goes on. The indices are the same."""
    monkeypatch.setattr(draws, "WHOLE", whole)
    drawn = draws.WithReplacement(10**6, 10**5, torch.Generator().manual_seed(4), ahead=True)
    assert drawn.shared == bool(whole)
    order = Drawing(drawn, SharedArrays())
    order.reach(0, 64)
    assert order._drawn == (10**5 if whole else 4096)
    order.reach(0, 10**5)
    expected = torch.randint(10**6, (10**5,), generator=torch.Generator().manual_seed(4))
    assert order.indices(0, 10**5) == expected.tolist()


def test_a_generator_of_the_script_is_drawn_from_step_by_step() -> None:
    drawn = draws.WithReplacement(10**6, 10**5, torch.Generator().manual_seed(4), ahead=False)
    assert not drawn.shared and drawn.piece(0, 0, 65) == 96
