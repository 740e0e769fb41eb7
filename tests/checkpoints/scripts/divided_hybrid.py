import contextlib
import json
import os
import sys

from divided_checkpoints_head import PowerCut, apart, found, made, train
from torchbus import session

os.chdir(sys.argv[1])
alone = train()
before = next(made)
options = {
    "checkpoint": "checkpoints",
    "every_n_steps": 7,
    "batch": "global",
    "sharded_save": True,
    "async_save": True,
}
with (
    contextlib.suppress(PowerCut),
    session(strategy="fsdp", hybrid=True, accelerator="cpu", timeout_s=30, **options) as s,
):
    found["apart"] = apart(train(int(sys.argv[2]), s), alone)
    found["steps"] = next(made) - before - 1
print(json.dumps(found))
