import sys

from torchbus import session

from torchbus_neptune.logger import NeptuneLogger

logger = NeptuneLogger(
    project="team/digits",
    api_token=sys.argv[1],
    ranks=sys.argv[4],
    finish_timeout_s=float(sys.argv[3]),
)
with session(strategy="ddp", devices=3, launch="fork", logger=logger, autolog=False) as s:
    for step in range(20):
        s.log(f"rank{s.rank}", step / 2, step=step)
    print("looped")
print("ended")
