import json
import sys

import torch
from loader_subclasses_head import data, found, ranks, train
from torchdata.stateful_dataloader import StatefulDataLoader


def make(batch_size=4, seed=5, **options):
    options = {
        "num_workers": int(sys.argv[1]),
        "shuffle": True,
        "generator": torch.Generator().manual_seed(seed),
    } | options
    return StatefulDataLoader(data, batch_size, **options)


found["alone"] = train(make(8))
with ranks() as s:
    found["divided"] = [s.all_gather_object(one) for one in train(make())]
    loader = make()
    found["length"] = len(loader)
    with torch.no_grad():
        found["whole"] = sum(len(x) for (x,) in loader)
with ranks(batch="global") as s:
    found["global"] = train(make(8))[1]
for every in (1, 3):
    with ranks() as s:
        loader = make(snapshot_every_n_steps=every)
        found["first"] = train(loader, stop=4)[0]
        state = loader.state_dict()
        begun = [s.all_gather_object(found["first"])]
    with ranks() as s:
        loader = make(seed=9, snapshot_every_n_steps=every)  # another order, but for the state
        loader.load_state_dict(state)
        found[f"gone on {every}"] = [*begun, s.all_gather_object(train(loader)[0])]
    with ranks() as s:
        loader = make(seed=9, snapshot_every_n_steps=every)
        loader.load_state_dict(state)
        loader.state_dict()  # makes an iterator, before the first pass
        found[f"asked before {every}"] = [*begun, s.all_gather_object(train(loader)[0])]
alone = make(8)
train(alone, stop=2)
state = alone.state_dict()
with ranks(batch="global") as s:
    loader = make(8, seed=9)
    loader.load_state_dict(state)
    found["from one process"] = s.all_gather_object(train(loader)[0])
print(json.dumps(found))
