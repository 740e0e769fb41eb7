import json
import os

from divided_checkpoints_head import apart, divided, found, made, train

alone = train()
found["apart"] = apart(divided("fsdp", 2, "checkpoints", every_n_steps=3, sharded_save=True), alone)
found["steps"] = next(made)
found["left"] = sorted(os.listdir("checkpoints"))
print(json.dumps(found))
