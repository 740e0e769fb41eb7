"""sequence_parallel and loss_parallel over 2 and 2 x 2 ranks, against one process."""

import json
import sys
from functools import partial

import torch
from parallel_head import PLAN, Gpt, train
from tensor_head import GPT_PLAN, alike, differ, opened, state
from torch.nn import functional as F

found = {}
SEQUENCE, LOSS = {"sequence_parallel": True}, {"loss_parallel": True}
strategy, ranks = sys.argv[1], int(sys.argv[2])


def compare(name, make=Gpt, plan=PLAN, loss_of=F.cross_entropy, **options):
    alone, seen_alone = train(8, make, loss_of=loss_of)
    with opened(ranks, strategy, plan=plan, tp=2, **options) as s:
        model, seen = train(16 // ranks, make, loss_of=loss_of)
        ours = state(model)
        found[name] = [
            differ(ours, state(alone)),
            float((seen - seen_alone).abs().max()),
            alike(s, ours),
        ]
        explained = s.explain()
    found[f"{name} after"] = differ(state(model), state(alone))
    return explained


found["explain"] = compare("sequence", plan=GPT_PLAN, **SEQUENCE)
compare("loss", **LOSS)
compare("both", **SEQUENCE, **LOSS)
if ranks == 2:
    compare("dropout", partial(Gpt, 0.2, False), **SEQUENCE, **LOSS)
    compare("smoothing", loss_of=partial(F.cross_entropy, label_smoothing=0.1), **LOSS)
    compare("sum", loss_of=lambda x, y: F.cross_entropy(x, y, reduction="sum") / 40, **LOSS)
    weight = torch.linspace(0.5, 1.5, 12)
    compare("weights", loss_of=partial(F.cross_entropy, weight=weight), **LOSS)
print(json.dumps(found))
