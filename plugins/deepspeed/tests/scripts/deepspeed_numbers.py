"""Trainings in a session of one stage, against one process."""

import json
import sys

import torch
from deepspeed_head import (
    adagrad,
    adamw,
    difference,
    flat,
    found,
    gan,
    of_states,
    opened,
    sgd,
    train,
)
from torch import nn

strategy, ranks = sys.argv[1], int(sys.argv[2])
alone = {make.__name__: train(4 * ranks, make, 0.5) for make in (adamw, adagrad, sgd)}
alone_gan = gan(4 * ranks)
alone_windows = train(8 * ranks)
with opened(strategy, ranks) as s:
    for make in (adamw, adagrad, sgd):
        model, optimizer, printed = train(4, make, 0.5)
        whole, theirs, losses = alone[make.__name__]
        found[make.__name__] = [
            difference(
                flat(whole), torch.cat([v.reshape(-1) for v in model.state_dict().values()])
            ),
            of_states(theirs, optimizer),
            max(abs(a - b) for a, b in zip(losses, printed, strict=True)),
        ]
    both = gan(4)
    together = [v.reshape(-1) for part in both for v in part.state_dict().values()]
    found["gan"] = [difference(flat(alone_gan), torch.cat(together))]
    text = " ".join(s.explain().split())
found["after"] = [difference(flat(whole), flat(model)), of_states(theirs, optimizer)]
found["plain"] = [
    type(one) is nn.Parameter and not vars(one) and one.grad is not None
    for one in model.parameters()
]
if "stage_3" not in strategy:
    with opened(strategy, ranks, accumulate_grad_batches=2):
        model = train(4)[0]
        together = torch.cat([v.reshape(-1) for v in model.state_dict().values()])
        found["windows"] = [difference(flat(alone_windows[0]), together)]
found["explain"] = text
print(json.dumps(found))
