import os
import signal
import sys

from torchbus import session

from torchbus_neptune.logger import NeptuneLogger

logger = NeptuneLogger(
    project="team/digits",
    api_token=sys.argv[1],
    start_timeout_s=float(sys.argv[2]),
    finish_timeout_s=float(sys.argv[3]),
)
with session(logger, strategy=None) as s:
    for step in range(100):
        s._context.bus.hook.metrics_ready(
            metrics={"loss": 1 / (step + 1)}, step=step, epoch=0, prog_bar=frozenset()
        )
        if step == 10 and len(sys.argv) > 4:
            os.kill(int(sys.argv[4]), signal.SIGKILL)
    print("looped", s.explain())
print("ended")
