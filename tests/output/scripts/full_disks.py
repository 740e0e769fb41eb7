import sys
import time
from pathlib import Path

from torchbus import session

from torchbus_neptune.logger import NeptuneLogger
from torchbus_testing.environments import SmallDisk
from torchbus_wandb.logger import WandbLogger

disk = SmallDisk(Path.cwd())
logger = {
    "wandb": lambda: WandbLogger(mode="offline"),
    "neptune": lambda: NeptuneLogger(mode="offline", project="a/b"),
}[sys.argv[1]]()


def send(steps):
    for step in steps:
        s._context.bus.hook.metrics_ready(
            metrics={"loss": float(step)}, step=step, epoch=None, prog_bar=frozenset()
        )
        while logger._calls.done < logger._calls.made:
            time.sleep(0.001)


with session(logger, strategy=None) as s:
    send(range(5))
    disk.fill()
    send(range(5, 105))
    disk.free()
    send(range(105, 205))
print("trained")
