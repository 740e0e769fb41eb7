import json
import os

import torch
from divided_checkpoints_head import apart, divided, found, made, train
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

alone = train()
ends = {}
for name, options in {"whole": {}, "parts": {"sharded_save": True, "async_save": True}}.items():
    divided("fsdp", 2, name, stop_after=8, **options)
    ends[name] = divided("fsdp", 2, name, **options)
    found[name] = apart(ends[name], alone)
found["ends alike"] = ends["whole"].equal(ends["parts"])
found["steps"] = next(made)
found["files"] = sorted(os.listdir("parts/step-00000007"))
dcp_to_torch_save("parts/step-00000007", "converted.pt")


def read(path):
    return torch.load(path, weights_only=True)


converted, whole = read("converted.pt"), read("whole/step-00000007/training.pt")["optimizers"]
for name in ("body", "tail"):
    weights = read(f"whole/step-00000007/model-{name}.pt")
    found[name] = [
        list(weights) == list(converted[f"model-{name}"]),
        all(map(torch.equal, weights.values(), converted[f"model-{name}"].values())),
    ]
flat = {
    f"{number}/state/state/{index}/{key}": value
    for number, one in enumerate(whole)
    for index, entry in one["state"]["state"].items()
    for key, value in entry.items()
}
flat |= {
    f"{number}/gradients/{index}": value
    for number, one in enumerate(whole)
    for index, value in enumerate(one["gradients"] or ())
}
states = converted["optimizers"]
found["states"] = [
    len(flat),
    flat.keys() == states.keys(),
    all(value.equal(states[key]) for key, value in flat.items()),
]
print(json.dumps(found))
