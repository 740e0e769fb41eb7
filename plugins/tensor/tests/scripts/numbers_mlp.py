"""An MLP with a ragged last batch: over 2, 3 and 2 x 2 ranks, against one process."""

import json
import sys

from tensor_head import PLAN, Mlp, alike, differ, numbers, opened, state, train

found = {}
ranks, tp = int(sys.argv[1]), int(sys.argv[2])
parts = ranks // tp
for kind in ("sgd", "adamw"):
    alone, _, seen_alone = train(Mlp, numbers(), 8, kind)
    with opened(ranks, plan=PLAN, tp=tp) as s:
        model, optimizer, seen = train(Mlp, numbers(), 8 // parts, kind)
        ours = state(model)
        part = model.blocks[0].up.weight.to_local().shape[0]
        found[kind] = [differ(ours, state(alone)), alike(s, ours), part]
        found[f"{kind} losses"] = float((seen - seen_alone).abs().max())
    found[f"{kind} after"] = differ(state(model), state(alone))
    found[f"{kind} plain"] = all(type(p).__name__ == "Parameter" for p in model.parameters())
print(json.dumps(found))
