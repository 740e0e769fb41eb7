"""What dp refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchbus import session
from torchbus.errors import UsageError

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result

HEAD = (Path(__file__).parent / "scripts" / "dp_head.py").read_text()

REFUSED = (
    HEAD
    + """
class Trim(nn.Linear):
    def forward(self, x):
        return super().forward(x)[:, : int((x[:, 0] > 0).sum()) + 1]

class Count(nn.Linear):
    def forward(self, x):
        return super().forward(x), (x > 0).sum()

x = torch.cat([torch.ones(2, 3), -torch.ones(2, 3)])
with dp() as s:
    {body}
"""
)


def refuse(body: str) -> Result:
    return fork_script(REFUSED.replace("{body}", body))


def test_outputs_whose_other_dimensions_depend_on_the_samples_are_refused():
    result = refuse("model = s.adopt(Trim(3, 4)); model(x).sum().backward(); model(x)")
    assert result.ok(1)
    assert (
        "output 0 of Trim has the shapes (2, 3), (2, 1) on the ranks, which have 2, 2 samples in dim 0: dp can't"
        in result.stderr
    )


def test_counts_that_forward_makes_are_refused():
    result = refuse("model = s.adopt(Count(3, 4)); model(x)[0].sum().backward(); model(x)")
    assert result.ok(1)
    assert "output 1 of Count, torch.int64 of shape (), differs between the ranks" in result.stderr


def test_ranks_that_do_not_see_the_same_batch_are_found_out():
    result = refuse(
        "torch.manual_seed(0); model = s.adopt(nn.Linear(3, 1)); model(x * (s.rank + 1)).square().mean().backward()"
    )
    assert result.ok(1)
    assert "strategy='dp': the ranks had different losses" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"batch_dim": -1},
            "batch_dim=-1: count dimensions from 0, since outputs may have fewer than inputs",
        ),
        (
            {"batch_dim": "0"},
            "batch_dim='0' is a str: it must be the number of a dimension, from 0",
        ),
        (
            {"loss_reduction": "max"},
            "loss_reduction='max' is unknown: use 'mean' or 'sum', or None if forward returns no loss",
        ),
        (
            {"sync_loss": True},
            "sync_loss: an option of strategy='ddp', and the strategy here is 'dp': leave it out, or pass strategy='ddp'",
        ),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(UsageError) as error:
        session(strategy="dp", **options)
    assert words in str(error.value)
