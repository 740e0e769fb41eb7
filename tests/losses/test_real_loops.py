"""Loops in the shapes of public repositories give what one process gives, or it is said or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script

SLOW = pytest.mark.slow
SCRIPT = Path(__file__).parent / "scripts" / "real_loops.py"

SAID = {
    "times_rows": "the loss is a mean multiplied by",
    "dice": "the loss is not a mean over samples but a function of such means",
}
UNKNOWABLE = ["hard_examples"]  # the worst of each rank's samples: docs/limits.md
APART = "the ranks wait for each other in different places"
AGAIN = "several steps of"
WINDOWS = {
    "truncated_bptt": AGAIN,
    "until_it_fits": AGAIN,
    "first_order_maml": "gradients that the loop has assigned",
    "sam_two_steps": "were changed between two backward() calls of one batch",
    "sam_closure": "",
    "lbfgs": "accumulate_grad_batches with LBFGS",
}
AVERAGE = "a model that no optimizer trains has changed"
SAID_IN_WINDOWS = {
    "byol": AVERAGE,
    "timm_like": AVERAGE,
    "zipped_cycle": AVERAGE,
    "adaptive_clipping": "the gradients of SGD were changed",
    "wgan_n_critic": "the parameters of RMSprop were changed",
    "uncertainty_weights": "the terms of the loss are means over different counts",
}
BY_BATCHES = ["nanogpt", "lazy_r1", "nested_loaders", "lookahead"]  # they count batches, not steps
AFTER_A_STEP = ["dcgan"]  # a batch's second loss follows the step of its first: docs/limits.md
AVERAGED = ["over_data_set"]  # each batch's sum has the same divisor, so a window is their mean
NO_WINDOWS = [*WINDOWS, *SAID_IN_WINDOWS, *BY_BATCHES, *AFTER_A_STEP, *AVERAGED]
# a share without targets: the printed loss lacks what is of parameters only, see docs/limits.md
OF_NOTHING = ["uncertainty_weights"]
QUICK = ["masked_tokens", "truncated_bptt", "dcgan", "distillation", "uncertainty_weights"]
QUICK += ["early_exits", "unfreezing", "zipped_cycle", "buckets", "sam_two_steps"]
OF_ONE = ["distillation"]  # divided by its number of samples
BUT = [*SAID, *UNKNOWABLE, "first_order_maml"]


def found(**asked: Any) -> dict[str, Any]:
    result = fork_script(SCRIPT, json.dumps(asked), timeout_s=800)
    assert result.ok(), result.stderr
    return dict(map(json.loads, result.stdout.splitlines()))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"strategy": "ddp", "devices": 2, "loops": QUICK}, id="quick"),
        pytest.param(
            {"strategy": "ddp", "devices": 3, "batch": "global", "samples": 62, "loops": OF_ONE},
            id="shares of one sample",
        ),
        pytest.param({"strategy": "ddp", "devices": 2, "but": BUT}, id="ddp", marks=SLOW),
        pytest.param(
            {"strategy": "ddp", "devices": 3, "batch": "global", "but": [*BUT, *OF_NOTHING]},
            id="3 ranks, global",
            marks=SLOW,
        ),
        pytest.param(
            {
                "strategy": "ddp",
                "devices": 2,
                "accumulate": 3,
                "samples": 72,
                "but": [*BUT, *NO_WINDOWS],
            },
            id="windows",
            marks=SLOW,
        ),
        pytest.param(
            {
                "strategy": "ddp",
                "devices": 3,
                "batch": "global",
                "accumulate": 2,
                "samples": 72,
                "but": [*BUT, *NO_WINDOWS],
            },
            id="3 ranks, global, windows",
            marks=SLOW,
        ),
        pytest.param(
            {"strategy": "ddp_sharded", "devices": 2, "but": [*BUT, "lbfgs"]},
            id="ddp_sharded",
            marks=SLOW,
        ),
    ],
)
def test_ranks_equal_one_process(asked: dict[str, Any]) -> None:
    results = found(**asked)
    limit = {"lbfgs": 1e-10}  # its line search multiplies rounding
    bad = {
        name: apart
        for name, apart in results.items()
        if isinstance(apart, str)
        or not max(apart[:3]) < limit.get(name, 1e-12)
        or (apart[3] and "accumulate" not in asked)
    }
    assert results and not bad


@SLOW
@pytest.mark.timeout(300)
def test_what_depends_on_the_batch_as_a_whole_is_said() -> None:
    results = found(strategy="ddp", devices=2, loops=list(SAID))
    for name, words in SAID.items():
        assert [text for text in results[name][3] if words in text], results[name]


@pytest.mark.timeout(300)
def test_a_model_that_some_ranks_call_more_often_is_named() -> None:
    (error,) = found(strategy="ddp", devices=2, loops=["first_order_maml"]).values()
    assert APART in error and "a call of Sequential" in error


@SLOW
@pytest.mark.timeout(600)
def test_what_a_window_can_t_be_is_refused_or_said() -> None:
    how: dict[str, Any] = {"strategy": "ddp", "devices": 2, "accumulate": 3, "samples": 72}
    results = found(loops=[*WINDOWS, *SAID_IN_WINDOWS], **how)
    for name, words in WINDOWS.items():
        assert isinstance(results[name], str) and words in results[name], (name, results[name])
    for name, words in SAID_IN_WINDOWS.items():
        assert [text for text in results[name][3] if words in text], (name, results[name])
