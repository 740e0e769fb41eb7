import itertools
import os
import signal
import sys

from divided_checkpoints_head import train
from torchbus import session

from torchbus_checkpoint.disk import folder, tensors

WHERE = sys.argv[1]
if WHERE == "among the parts":
    place, name, whom, which = tensors, "write", 1, 3  # two files in each
else:
    place, name, whom, which = folder, "seal", 0, 2
original, calls = getattr(place, name), itertools.count(1)


def die(*args):
    if s.rank == whom and next(calls) == which:
        if WHERE == "among the parts":
            args[1].write(b"half a file")
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args)


setattr(place, name, die)
options = {"checkpoint": "checkpoints", "every_n_steps": 3, "batch": "global", "sharded_save": True}
s = session(strategy="fsdp", devices=2, accelerator="cpu", launch="fork", timeout_s=30, **options)
with s:
    train()
