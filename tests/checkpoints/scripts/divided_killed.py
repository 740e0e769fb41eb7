import itertools
import os
import signal
import sys

from divided_checkpoints_head import train
from torchbus import session

from torchbus_checkpoint.disk import folder, parts

WHERE = sys.argv[1]
if WHERE == "among the parts":
    place, name, whom, which = parts.Files, "create_stream", 1, 2
else:
    place, name, whom, which = folder, "seal", 0, 2
original, calls = getattr(place, name), itertools.count(1)


def die(*args):
    if s.rank == whom and next(calls) == which:
        if WHERE == "among the parts":
            os.close(os.open(args[1], os.O_CREAT))  # half a file
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args)


setattr(place, name, die)
options = {"checkpoint": "checkpoints", "every_n_steps": 3, "batch": "global", "sharded_save": True}
s = session(strategy="fsdp", devices=2, accelerator="cpu", launch="fork", timeout_s=30, **options)
with s:
    train()
