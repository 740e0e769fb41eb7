import json
import sys
import time

import pretend  # noqa: F401
from torchbus import session
from torchbus.bus.base import hookimpl


class Seen:
    def __init__(self):
        self.all = []

    @hookimpl
    def system_metrics(self, metrics, time_s):
        self.all.append(metrics)


seen = Seen()
with session(seen, devices=[int(sys.argv[1])], capture=False, interval_s=0.05) as s:
    deadline = time.monotonic() + 60
    while len(seen.all) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
print(json.dumps(seen.all))
