"""Pictures and histograms to every tracker that keeps them here, and calls that failed, as JSON."""

import json

import torch
from torchbus import session

from torchbus_neptune.logger import NeptuneLogger
from torchbus_tensorboard.logger import TensorBoardLogger
from torchbus_trackers.mlflow import MLflowLogger
from torchbus_trackers.trackio import TrackioLogger
from torchbus_wandb.logger import WandbLogger

PATIENCE = {"finish_timeout_s": 300}
trackers = [
    TensorBoardLogger(root="tensorboard", **PATIENCE),
    WandbLogger(mode="offline", **PATIENCE),
    NeptuneLogger(mode="offline", project="a/b", **PATIENCE),
    MLflowLogger(tracking_uri="sqlite:///mlflow.db", **PATIENCE),
    TrackioLogger(project="digits", name="x", **PATIENCE),
]
with session(logger=[*trackers, "local"], strategy=None) as s:
    for step in range(3):
        s.log_image("samples/a b", torch.rand(3, 4, 5), step=step)
        s.log_image("grey", torch.rand(4, 5), step=step)
        s.log_histogram("w", torch.arange(100.0), bins=4, step=step)
    explained = str(s.explain())
print(json.dumps([line for line in explained.splitlines() if "calls" in line]))
