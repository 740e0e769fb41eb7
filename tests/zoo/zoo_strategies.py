"""The loops of the zoo under other strategies than ddp: what each needs to be told, where its
numbers are others, and what is refused.

benchmarks/results/corpus.md lists what is refused, by its message; a test compares the two.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from loop import Loop

STRATEGIES = ("dp", "fsdp", "ddp_sharded", "horovod")
ELSEWHERE = "gradients that are made by torch.autograd.grad and applied by hand are not averaged"
PLACES = "the ranks are at different places of the loop"
IN_GRADIENTS = "the ranks wait for each other in different places"
LBFGS = "with LBFGS: its step looks at all parameters together"
DERIVATIVES = "torch.autograd.grad for parameters under strategy='fsdp'"
NO_OPTIMIZER = "got gradients, but was called before any optimizer had its parameters"

REFUSED: dict[str, dict[str, str]] = {
    "dp": {
        "custom_batch_sampler": "output 1 of GRU has the shapes",
        "rnn_carried_hidden": "RNNModel.rnn (LSTM) has batch_first=False, so time in dim 0",
    },
    "fsdp": {
        "lbfgs_closure": LBFGS,
        "lbfgs_full_batch": LBFGS,
        "no_optimizer": NO_OPTIMIZER,
        "architecture_search": NO_OPTIMIZER,
        "rnn_carried_hidden": NO_OPTIMIZER,
        "updated_by_hand": ELSEWHERE,
        "assigned_grads": DERIVATIVES,
        "meta_learning": DERIVATIVES,
        "create_graph": "backward(create_graph=True) under strategy='fsdp'",
        "backward_inputs": "backward(inputs=) under strategy='fsdp'",
        "optimizer_in_backward": "register_post_accumulate_grad_hook of a parameter under strategy='fsdp'",
        "sparse_embedding": "SkipGram.u_embeddings has sparse gradients",
        "save_open_file": NO_OPTIMIZER,
        "stop_before_backward": NO_OPTIMIZER,
        "rl_solved": PLACES,
        "cyclegan": "shares 0.weight with another model",
        "batch_branch": PLACES,
        "backward_per_class": IN_GRADIENTS,
        "skip_bad_batch": PLACES,
        "save_whole_model": "pickling Model under strategy='fsdp'",
        "pickled_optimizer": "pickling Sequential under strategy='fsdp'",
        "deepcopy_model": "copy.deepcopy of Sequential under strategy='fsdp'",
        "batchnorm_update": "mixes parts of parameters or gradients with whole tensors",
    },
    "ddp_sharded": {
        "lbfgs_closure": LBFGS,
        "lbfgs_full_batch": LBFGS,
        "backward_per_class": IN_GRADIENTS,
        "pickled_optimizer": "pickling or copying Adam under strategy='ddp_sharded'",
    },
    "horovod": {
        "sparse_embedding": "SparseAdam does not support dense gradients",
    },
}
"""Loop, and words of the message.

Those that ddp refuses are refused by ddp_sharded too, in its words.
"""

OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "dp": {},
    "fsdp": {
        "vae": {"forward_methods": ["decode"]},
    },
    "ddp_sharded": {},
    "horovod": {},
}
"""What a loop can't do without."""

NOT_EXACT_UNDER_DP = {
    "vae": "noise inside forward is drawn by each rank for its rows",
    "dropout": "noise inside forward is drawn by each rank for its rows",
    "slices_dropout": "noise inside forward is drawn by each rank for its rows",
    "batch_norm": "batch statistics of a rank's rows",
    "gan_noise": "batch statistics of a rank's rows",
    "vq_codebook": "the codebook follows the statistics of a rank's rows",
    "unseeded": "one process draws another order",
    "siamese": "the partner of each sample is drawn with `random`",
    "reinforce": "an environment that is not seeded alike",
}


def under(strategy: str, loop: Loop) -> Loop:
    """The row of a loop for a strategy."""
    row = under_dp(loop) if strategy == "dp" else loop
    if strategy == "fsdp":
        # That all ranks compute the same is said by ddp alone.
        row = replace(row, said="")
    words = REFUSED[strategy].get(loop.name)
    options = {**row.options, "strategy": strategy, **OPTIONS[strategy].get(loop.name, {})}
    return replace(row, options=options, refused=re.escape(words) if words else row.refused)


def under_dp(loop: Loop) -> Loop:
    """Nothing is divided, so that everything is as in one process at its own batch size, and ranks
    do not go different ways.
    """
    options = {name: value for name, value in loop.options.items() if name != "loss_reduction"}
    exact = loop.name not in NOT_EXACT_UNDER_DP
    values = loop.values if exact else ()
    return replace(
        loop,
        options=options,
        divided=False,
        exact=exact,
        same_output=True,
        values=values,
        refused="",
        said="",
        distinct=(),
    )
