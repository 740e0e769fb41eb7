"""Runs a loop on the given number of ranks, which logs offline to the given logger."""

import json
import random
import sys

import torch
from torchbus import session

import torchbus_trackers
from torchbus_testing.state import assert_torch_unchanged, torch_state

name, options, ranks, fails = json.loads(sys.argv[1])
logger = getattr(torchbus_trackers, name)(**options)
alone = {"strategy": None} if ranks == 1 else {"strategy": "ddp", "devices": ranks}
before = torch_state()
random.seed(7)
drawn = random.Random(7).random()
with session(logger=logger, autolog=False, log_every_n_steps=5, **alone) as s:
    first = random.random() if ranks == 1 else drawn
    s.log_hyperparams({"lr": 0.1, "net": {"width": 64}, "api_key": "hush-hush-hush"})
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(1, 21):
        weight.mean().backward()
        optimizer.step()
        s.log_dict({f"rank{s.rank}": 1 / step, "train/acc@1": float(step)})
        if step == 3:
            s.log_image("samples/a b", torch.rand(3, 4, 5))
            s.log_image("grey", torch.rand(4, 5))
            s.log_histogram("w", torch.arange(100.0), bins=4)
        if step == 4:
            s.log("bad", float("nan"))
    s._context.bus.hook.system_metrics(metrics={"gpu_percent": 50.0}, time_s=2.5)
    told = {"id": logger.run_id, "same_random": first == drawn, "explained": s.explain()}
    if s.is_main:
        print("told", json.dumps(told))
    if fails:
        raise ArithmeticError("the loop fails")
if not logger.offline:  # else the first start still runs on its thread
    assert_torch_unchanged(before)
print("ended")
