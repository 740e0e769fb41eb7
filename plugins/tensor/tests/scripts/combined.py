"""ddp and fsdp with tp=2, over 2 x 2 ranks, against one process."""

import json
import sys

from tensor_head import (
    GPT_PLAN,
    PLAN,
    Gpt,
    Mlp,
    alike,
    differ,
    numbers,
    opened,
    state,
    train,
    words,
)

found = {}
CASES = {
    "mlp": (Mlp, numbers(), 8, PLAN),
    "gpt": (Gpt, words(), 8, GPT_PLAN),
    "window": (Mlp, numbers(24), 8, {"blocks.*.up": "colwise"}),
}


def compare(name, kind, every=1):
    make, data, batch, plan = CASES[name]
    alone, _, seen_alone = train(make, data, batch, kind, every=every)
    with opened(4, strategy=sys.argv[1], tp=2, plan=plan) as s:
        model, _, seen = train(make, data, batch // 2, kind, every=every)
        ours = state(model)
        weight = model.blocks[0].up.weight
        part = weight.to_local().numel() / weight.numel()
        found[f"{name} {kind}"] = [differ(ours, state(alone)), alike(s, ours), part]
        found[f"{name} {kind} losses"] = float((seen - seen_alone).abs().max())
        found["explain"] = s.explain()
    found[f"{name} {kind} after"] = differ(state(model), state(alone))
    plain = all(type(p).__name__ == "Parameter" for p in model.parameters())
    found[f"{name} {kind} plain"] = plain


compare("mlp", "sgd")
compare("mlp", "adamw")
compare("window", "sgd", every=2)  # layers that the plan leaves whole get divided inputs
compare("gpt", "sgd")  # Adam enlarges the rounding of keys' biases, whose gradients are zero
print(json.dumps(found))
