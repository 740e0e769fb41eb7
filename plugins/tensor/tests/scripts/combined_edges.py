"""fsdp over "dp" and tp over "tp": what else fsdp does, against one process or fsdp without tp."""

import json
import tempfile
import warnings

import torch
from tensor_head import PLAN, Mlp, differ, loss_of, numbers, opened, session, state, train
from torch.utils.data import DataLoader

from torchbus_sharded.strategy import FSDP
from torchbus_tensor_parallel.beside import TensorLayers

warnings.simplefilter("ignore")
found = {}
BOTH = {"ranks": 4, "strategy": "fsdp", "tp": 2, "plan": PLAN}


def filled(**options):
    """The values that a model on the meta device gets."""
    with opened(**options):
        torch.manual_seed(0)
        with torch.device("meta"):
            model = Mlp()
        torch.optim.AdamW(model.parameters())
        return state(model)


found["meta"] = differ(filled(**BOTH), filled(ranks=2, strategy="fsdp"))


def run(s=None, path=None, stop=None):
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(numbers(24), 8 if s is None else 4, shuffle=True)
    if path and not stop:
        s.load(path)
    step = 0
    for _ in range(2) if s is None else s.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            step += 1
            if step == stop:
                return s.save(path)
    return state(model)


whole = run()
for name, second in (("2x2", BOTH), ("fsdp", {"ranks": 2, "strategy": "fsdp"})):
    folder = f"{tempfile.mkdtemp()}/kept"
    with opened(**BOTH, sharded_save=True) as s:
        run(s, folder, stop=4)
    with opened(**second) as s:
        found[f"sharded to {name}"] = differ(run(s, folder), whole)

alone, _, _ = train(Mlp, numbers(), 8)
with opened(**BOTH, hybrid=True) as s:
    found["hybrid"] = differ(state(train(Mlp, numbers(), 4)[0]), state(alone))
    found["hybrid sizes"] = list(s.world.mesh.mesh.shape)
objects = {"strategy": FSDP(tp=2), "accelerator": "cpu", "launch": "fork"}
with session(TensorLayers(plan=PLAN), devices=4, **objects):
    model, _, _ = train(Mlp, numbers(), 4)
    found["objects"] = differ(state(model), state(alone))
    for p in model.parameters():
        p.grad = torch.full_like(p, float("nan"))
    try:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    except Exception as error:
        found["nan"] = "non-finite" in str(error)
print(json.dumps(found))
