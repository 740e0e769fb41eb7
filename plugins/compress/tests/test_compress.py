"""Every algorithm on two ranks: one model at the end, nearly as good as with allreduce, and exact
metadata.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchbus import session
from torchbus.errors import UsageError

from torchbus_compress.codecs import Bfloat16, Bytes
from torchbus_compress.plugin import WITHOUT_STRATEGY, HookStates
from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

TRAIN = SCRIPTS / "train_compressed.py"


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    return dict(fork_script(TRAIN, timeout_s=115).json())


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", WITHOUT_STRATEGY)
def test_it_learns_what_allreduce_learns(algorithm, trained):
    assert trained["allreduce"][0] > 0.95
    assert abs(trained[algorithm][0] - trained["allreduce"][0]) < 0.02


@pytest.mark.parametrize("algorithm", WITHOUT_STRATEGY)
def test_the_loss_that_ranks_tell_each_other_is_exact(algorithm, trained):
    assert trained[algorithm][1] < 1e-5


def test_explain_names_it(trained):
    assert "gradients   bytegrad: averaged over ranks" in trained["bytegrad"][2]
    assert "gradients   local_sgd: models are averaged, not gradients" in trained["local_sgd"][2]


ONE_MODEL = SCRIPTS / "one_model.py"


@pytest.mark.slow
def test_after_an_epoch_all_ranks_have_one_model():
    assert fork_script(ONE_MODEL, timeout_s=115).json() == {
        algorithm: [True] * 3 for algorithm in WITHOUT_STRATEGY
    }


NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


@given(NUMBERS)
def test_a_byte_is_off_by_half_a_step_at_most(numbers):
    rows = torch.tensor([numbers], dtype=torch.float64)
    sent = Bytes().encode(rows)
    step = float(rows.max() - rows.min()) / 255
    assert sent.dtype == torch.uint8 and sent.shape[1] == len(numbers) + 16
    assert float(
        (Bytes().decode(sent, torch.float64) - rows).abs().max()
    ) <= step * 0.5000001 + 1e-9 * float(rows.abs().max())


@given(NUMBERS)
def test_bfloat16_keeps_two_digits(numbers):
    rows = torch.tensor([numbers], dtype=torch.float32)
    sent = Bfloat16().encode(rows)
    assert sent.shape[1] == 2 * len(numbers)
    assert torch.allclose(Bfloat16().decode(sent, torch.float32), rows, rtol=2**-8, atol=1e-30)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (
            "sign",
            "gradient_algorithm='sign' is unknown: use one of 'allreduce', 'fp16', 'bf16', 'powersgd', 'bytegrad', 'local_sgd',",
        ),
        (
            "qadam",
            "gradient_algorithm='qadam' is an optimizer of Bagua's that sends Adam's momentum",
        ),
    ],
)
def test_wrong_names(algorithm, words):
    with pytest.raises(UsageError) as error:
        session(strategy=None, gradient_algorithm=algorithm)
    assert str(error.value).startswith(words)


def test_it_needs_a_reducer():
    with pytest.raises(
        UsageError,
        match="gradient_algorithm='fp16' changes what torch's DDP reducer sends, which .* use strategy='ddp'",
    ):
        session(strategy=None, gradient_algorithm="fp16").start()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("strategy", "options", "algorithms", "words"),
    [
        (
            "fsdp",
            {},
            WITHOUT_STRATEGY[1:],
            "changes what torch's DDP reducer sends, which this strategy does not use: use strategy='ddp'",
        ),
        (
            "ddp_sharded",
            {"shard_gradients": True},
            ("fp16", "async"),
            "changes what torch's DDP reducer sends, which this strategy does not use",
        ),
        (
            "ddp_sharded",
            {},
            ("local_sgd", "decentralized", "low_precision_decentralized", "async"),
            "each parameter is stepped by one rank",
        ),
    ],
)
def test_refused_beside_strategies_that_do_not_use_it(
    strategy, options, algorithms, words, ranks
) -> None:
    """The error comes before the loop begins."""
    pytest.importorskip("torchbus_sharded")
    for algorithm in algorithms if ranks == 1 else algorithms[:1]:
        given = {
            "strategy": strategy,
            "devices": ranks,
            "accelerator": "cpu",
            "launch": "fork",
            "gradient_algorithm": algorithm,
        }
        with pytest.raises(UsageError, match=words), session(**given, **options):
            pytest.fail("the loop began")


OF_NUMPY = {"bit_generator": "MT19937", "state": {"key": [1] * 624, "pos": 10**9}}


@pytest.mark.parametrize(
    "random", [("MT19937", [1] * 2000, 2000, 0, 0.0), OF_NUMPY | {1: [], 2: 0}]
)
def test_a_generator_behind_its_last_number(random: Any) -> None:
    """NumPy would read memory there. It takes longer lists, and dicts, too."""
    numpy = pytest.importorskip("numpy")
    states, kept = HookStates(), SimpleNamespace(rng=numpy.random.RandomState(0))
    states.add(torch.nn.Linear(2, 1), cast(Any, kept))
    saved = {"steps": 1, "random": random, "errors": {}, "ps": {}, "qs": {}}
    with pytest.raises(ValueError, match="a generator behind its last number"):
        states.load_state_dict({"1x2": cast(Any, saved)}, True)
