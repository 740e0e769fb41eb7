"""What the pipeline refuses, each before a number is wrong, in words that name offender and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchbus import session
from torchbus.errors import UsageError

from torchbus_testing.forking import fork_script

REFUSED = Path(__file__).parent / "scripts" / "refused.py"

SAID = {
    "adds up": "balance=[2, 2]: these are 4 layers, and Sequential has 5",
    "stages": "balance=[1, 2, 2]: these are 3 stages, and 2 ranks have 2",
    "too few": "Sequential has 1 layers, and there are 2 stages: use fewer devices",
    "too few blocks": "Sequential has 3 layers, and there are 4 stages, two for each rank",
    "no list": "blocks='layers': Sequential has nothing there",
    "tied": "0 and 2 of Sequential share a parameter, and would be on different ranks",
    "skips": "add of what blocks.1 of Unet returns, before the last of the layers is called",
    "two outputs": "0 of Sequential returns tuple for 2 samples",
    "conditioned": "the layers of Conditioned get a tensor of shape () besides their input",
    "pickled": "pickling a model under strategy='pipeline'",
    "gradients": "p.grad is None (it has no 'norm'): under strategy='pipeline' a rank has the",
    "penalty": "of a parameter under strategy='pipeline': ",
    "slopes": "torch.autograd.grad through Sequential under strategy='pipeline'",
    "create_graph": "backward(create_graph=True) under strategy='pipeline'",
    "inputs": "backward(inputs=) under strategy='pipeline'",
    "by itself": "blocks.1 of Transformer was called separately",
    "grown": "the layers of Sequential are not those that were divided among the ranks",
    "lbfgs": "strategy='pipeline' with LBFGS",
    "number": "the layers of Sequential get a tensor of shape ()",
    "own function": "Reverse, a torch.autograd.Function, gets the output of a model",
    "read late": "the result of mul is read after a tensor that it uses has changed",
    "diverging": "rank 0 ended its loop after 0 backward calls, while rank 1 waits in backward 1",
    "places": "the ranks are at different places of the loop",
    "other batches": "backward 2 of a batch with the checksum",
    "no rows": "gets a tensor besides its input that has a row for each sample in one batch",
    "scaler": "GradScaler (precision='16') under strategy='pipeline'",
    "sharded_save": "sharded_save=True with strategy='pipeline'",
}


def test_each_is_refused_by_name():
    found = fork_script(REFUSED, timeout_s=200).json()
    assert {name for name in found if SAID[name] not in found[name]} == set()
    assert {*found} == {*SAID}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"balance": [2, 0]}, "balance=[2, 0]: use 'auto' (by parameters), 'time', or a list"),
        ({"microbatches": 0}, "microbatches=0: it must be 1 or more"),
        ({"microbatches": "4"}, "microbatches='4' is a str"),
        ({"stages": 0}, "stages=0: it must be 1 or more"),
        ({"schedule": "zigzag"}, "schedule='zigzag' is unknown: use 'gpipe', '1f1b' or"),
        ({"blocks": 3}, "blocks=3 is an int"),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(UsageError) as error:
        session(strategy="pipeline", **options)
    assert words in str(error.value)


def test_ranks_that_stages_do_not_divide():
    with (
        pytest.raises(UsageError, match="3 ranks and stages=2: pipelines of 2 ranks each need"),
        session(strategy="pipeline", devices=3, accelerator="cpu", stages=2),
    ):
        pass
