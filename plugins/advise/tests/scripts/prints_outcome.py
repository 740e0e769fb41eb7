import sys
from pathlib import Path

from torchbus_advise.trial import Request
from torchbus_advise.trial import child_run as run

kind, steps = sys.argv[1:]
outcome = run(Request("train.py", [], False, kind == "fake", int(steps)))
outcome.write(Path("outcome.json"))
