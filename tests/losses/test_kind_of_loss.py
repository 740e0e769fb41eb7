"""A plain sum over samples is summed, and a loss that was said to be something else is told."""

from __future__ import annotations

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = """
import sys
import torch
from torchbus import session

options = {"shard_gradients": True} if sys.argv[1] == "ddp_sharded" else {}
if sys.argv[3] != "auto":
    options["loss_reduction"] = sys.argv[3]
with session(strategy=sys.argv[1], devices=2, launch="fork", accelerator="cpu", **options) as s:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.randn(4, 3) + s.rank).square()
    (loss.sum() if sys.argv[2] == "sum" else loss.mean()).backward()
    optimizer.step()
    print(s.explain())
"""
SAID = "the loss looks like a sum over samples, but is treated as a mean"
SUMMED = "the loss is a sum over samples, as its graph says"


@pytest.mark.parametrize(
    ("strategy", "kind", "said"),
    [
        *[
            (one, kind, "auto")
            for one in ("ddp", "fsdp", "ddp_sharded")
            for kind in ("sum", "mean")
        ],
        ("ddp", "sum", "mean"),
        ("fsdp", "sum", "mean"),
    ],
)
def test_a_sum_is_in_explain_and_another_word_is_warned_of(
    strategy: str, kind: str, said: str
) -> None:
    result = fork_script(SCRIPT, strategy, kind, said, timeout_s=60).ok()
    warned, summed = int(said == "mean"), int((kind, said) == ("sum", "auto"))
    assert result.stderr.count(SAID) == warned, result.stderr
    words = " ".join(result.stdout.split())
    assert (words.count(SAID), words.count(SUMMED)) == (warned, summed)


ROWS = """
import torch
from torchbus import session
from torch.utils.data import DataLoader

with session(strategy="ddp", devices=2, launch="fork", loss_reduction="sum") as s:
    model = torch.nn.Linear(3, 1)
    for x in DataLoader(torch.randn(16, 3), batch_size=4):
        (model(x).square().mean() * len(x) / 16).backward()
"""


def test_a_mean_times_the_number_of_samples_is_no_mean_to_be_told_of() -> None:
    """Without ``loss_reduction`` the session asks for this "sum"."""
    assert "Warning" not in fork_script(ROWS, timeout_s=60).ok().stderr
