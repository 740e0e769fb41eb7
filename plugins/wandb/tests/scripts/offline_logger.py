import math

import torch
import wandb
from torchbus import session

from torchbus_testing.state import assert_torch_unchanged, torch_state
from torchbus_wandb.logger import WandbLogger

logger = WandbLogger(
    project="digits", tags=["a"], mode="offline", log_checkpoints=True, finish_timeout_s=500
)
before = torch_state()
with session(logger, strategy=None) as s:
    own = wandb.init(project="other")  # a script that uses wandb itself
    own.log({"own": 1.0})
    for step in (3, 2, 5):
        s._context.bus.hook.metrics_ready(
            metrics={"loss": 1 / step, "nan": math.nan}, step=step, epoch=0, prog_bar=frozenset()
        )
        torch.save({"step": step}, "last.pt")
    wandb.log({"accuracy": 0.5}, step=1)
    own.log({"accuracy": 0.75}, step=2)
    s._context.bus.hook.hyperparameters(values={"lr": 0.1, "odd": object})
    s._context.bus.hook.system_metrics(metrics={"gpu_percent": 50.0}, time_s=2.5)
    assert own.id == logger.experiment.id
assert_torch_unchanged(before)
