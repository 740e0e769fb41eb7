"""``torchbus verify`` over the zoo: the verdict on each loop, and its cause.

And over what the zoo has not.
"""

from __future__ import annotations

import pytest
from verdicts import BETWEEN, COUNTED, DRAWS, READING, STATISTICS, names, verified
from zoo import ZOO

CAUSES = {
    "vae": (DRAWS,),
    "siamese": (READING,),
    "slices_dropout": (DRAWS,),
    "gan_noise": (STATISTICS, DRAWS),
    "vq_codebook": ("a buffer that follows the batch",),
    "train_override": (COUNTED,),
    "batch_branch": (BETWEEN,),
    "plateau_running": (COUNTED,),
    "generator_batches": (DRAWS,),
    "get_batch": (DRAWS,),
    "mixup": (DRAWS,),
    "reinforce": (DRAWS,),
    "transfer_learning": (COUNTED,),
    "dropout": (DRAWS,),
    "batch_norm": (STATISTICS,),
    "stop_before_backward": (DRAWS,),
}
"""By loop, where something differs, as data parallel training is."""
NOT_COMPARED = {
    "updated_by_hand": "never calls backward()",
    "backward_per_class": "fails only under the session",
    "skip_bad_batch": "fails only under the session",
    "trained_in_eval_mode": "fails only under the session",
    "contrastive": "fails only under the session",
    "rl_solved": "fails only under the session",
}
REPLICAS = ("lbfgs_full_batch", "rnn_carried_hidden")
"""The same numbers, and nothing gained."""
QUICK = (
    "mnist_main",
    "dropout",
    "backward_per_class",
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(loop, id=loop.name, marks=[] if loop.name in QUICK else [pytest.mark.slow])
        for loop in ZOO
    ],
)
def test_loop_of_the_zoo(loop):
    options = [
        word
        for name, value in loop.options.items()
        if name != "batch"
        for word in ("-o", f"{name}={value}")
    ]
    verdict = verified(*options, loop.path.name, *loop.arguments(1), cwd=loop.path.parent)
    told = (verdict["headline"], names(verdict), verdict["notes"])
    if loop.name in NOT_COMPARED:
        assert verdict["status"] == 3 and NOT_COMPARED[loop.name] in verdict["headline"], told
        return
    causes = CAUSES.get(loop.name, ())
    assert verdict["status"] == (1 if causes else 0), told
    assert set(names(verdict)) == set(causes), told
    gained_nothing = any(note.startswith("nothing was gained") for note in verdict["notes"])
    assert gained_nothing or loop.name not in REPLICAS, told


def test_every_name_in_the_tables_is_a_loop():
    assert {*CAUSES, *NOT_COMPARED, *REPLICAS, *QUICK} <= {loop.name for loop in ZOO}
