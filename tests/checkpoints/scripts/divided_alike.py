import json
import os
from pathlib import Path

import torch
from divided_checkpoints_head import apart, divided, found, made, train

from torchbus_checkpoint.command import NO_LOOP
from torchbus_checkpoint.disk import choice

alone = train()
ends = {}
for name, options in {"whole": {}, "parts": {"sharded_save": True, "async_save": True}}.items():
    divided("fsdp", 2, name, stop_after=8, **options)
    ends[name] = divided("fsdp", 2, name, **options)
    found[name] = apart(ends[name], alone)
found["ends alike"] = ends["whole"].equal(ends["parts"])
found["steps"] = next(made)
found["files"] = sorted(os.listdir("parts/step-00000007"))


def read(path):
    state, weights, read_parts = choice.loaded(Path(path), NO_LOOP)
    read_parts()
    return weights, state["optimizers"]


def flat(optimizers):
    values = {
        f"{number}/state/state/{index}/{key}": value
        for number, one in enumerate(optimizers)
        for index, entry in one["state"]["state"].items()
        for key, value in entry.items()
    }
    return values | {
        f"{number}/gradients/{index}": value
        for number, one in enumerate(optimizers)
        for index, value in enumerate(one["gradients"] or ())
    }


(weights, optimizers), (whole_weights, whole) = (
    read(f"{name}/step-00000007") for name in ("parts", "whole")
)
for name, one, other in zip(("body", "tail"), weights, whole_weights, strict=True):
    found[name] = [list(one) == list(other), all(map(torch.equal, one.values(), other.values()))]
states, expected = flat(optimizers), flat(whole)
found["states"] = [
    len(expected),
    expected.keys() == states.keys(),
    all(value.equal(states[key]) for key, value in expected.items()),
]
print(json.dumps(found))
