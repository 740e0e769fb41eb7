"""``batch="global"`` with batches too small for all ranks: said once, and in ``explain()``."""

from __future__ import annotations

import pytest
from ranks import facts

BODY = """
        import warnings
        weight = s.adopt(nn.Parameter(torch.ones(1)))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                loader = DataLoader(torch.arange(12.0), batch_size=SIZE)
                for x in loader:
                    (weight * x).mean().backward()
        found["said"] = [str(one.message) for one in said]
        found["explained"] = "1 of them have none" in " ".join(str(s.explain()).split())
"""


@pytest.mark.parametrize(("size", "idle"), [(3, True), (4, False)])
def test_ranks_without_samples_are_said_once(size: int, idle: bool) -> None:
    found = facts(BODY.replace("SIZE", str(size)), "batch='global'")
    assert len(found["said"]) == idle and found["explained"] == idle
    assert all("Use batches of 4 samples or more" in one for one in found["said"])
