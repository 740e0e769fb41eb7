import json
import os
import sys

from divided_checkpoints_head import apart, divided, found, made, train

STRATEGY, BEFORE, AFTER, OPTIONS = json.loads(sys.argv[1])
alone = train()
divided(STRATEGY, BEFORE, "checkpoints", stop_after=8, **OPTIONS)
found["stopped"] = sorted(os.listdir("checkpoints"))
found["apart"] = apart(divided(STRATEGY, AFTER, "checkpoints", **OPTIONS), alone)
found["steps"] = next(made)
print(json.dumps(found))
