"""``batch="global"``: batches that are too small for all ranks, and loops that expect whole ones."""

from __future__ import annotations

import sys

import pytest
from ranks import facts, run

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


FIXED = """
        net = nn.GRU(8, 16, batch_first=True)
        for x in DataLoader(torch.randn(12, 5, 8), batch_size=6):
            {}
            net(x, torch.zeros(1, 6, 16))[0].mean().backward()
"""
NOTE = (
    "torchbus: this rank's share of the batch has 3 samples, and batch_size=6 in the script: take"
    " the size from the batch, as in x.shape[0] (see Data in docs/semantics.md)"
)


def test_an_error_of_a_fixed_batch_size_says_that_ranks_get_shares() -> None:
    result = run(FIXED.format(""), "batch='global'")
    assert "RuntimeError: Expected hidden size (1, 3, 16), got [1, 6, 16]" in result.stderr
    assert (NOTE in result.stderr) == (sys.version_info >= (3, 11))


def test_a_loop_that_skips_every_share_is_told_their_size() -> None:
    result = run(FIXED.format("if len(x) != 6: continue"), "batch='global'")
    assert result.ok(), result.stderr
    assert (
        "If the loop skips batches whose size is not 6: a rank's share of a batch has 3 samples"
        in " ".join(result.stderr.split())
    )
