"""A transformer with masks, dropout between divided layers and a shared embedding."""

import json
import sys
from functools import partial

from tensor_head import GPT_PLAN, Gpt, alike, differ, opened, state, train, words

found = {}
ranks = int(sys.argv[1])
alone_by_name = {}
for name, drop, kernel in (
    ("kernel", 0.0, True),
    ("formula", 0.0, False),
    ("dropout", 0.2, False),
    ("dropout in the kernel", 0.2, True),
):
    make = partial(Gpt, drop, kernel)
    alone, _, seen_alone = train(make, words(), 4, "sgd", epochs=1)
    alone_by_name[name] = state(alone)
    with opened(ranks, plan=GPT_PLAN) as s:
        model, _, seen = train(make, words(), 4, "sgd", epochs=1)
        ours = state(model)
        found[name] = [differ(ours, state(alone)), alike(s, ours)]
        found[f"{name} losses"] = float((seen - seen_alone).abs().max())
        explained = s.explain()
found["drops"] = differ(alone_by_name["kernel"], alone_by_name["dropout"])
print(json.dumps(found | {"explain": explained}))
