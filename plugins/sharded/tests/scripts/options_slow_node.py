import json
import time

import torch
from options_head import Net, part, steps
from torchbus import session


class Slow(Net):
    def modules(self):
        if waits.pop("before it gathers", False):
            time.sleep(4)
        return super().modules()


waits = {}
with session(strategy="fsdp", accelerator="cpu", hybrid=True, replace_sampler=False) as s:
    model = Slow()
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1), part(s))
    waits["before it gathers"] = s.is_main
print(json.dumps("before it gathers" in waits))
