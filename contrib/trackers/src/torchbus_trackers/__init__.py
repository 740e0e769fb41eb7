"""torchbus-trackers: MLflow, Comet, Aim, ClearML, Trackio, DVCLive, SwanLab and CSV as loggers."""

from __future__ import annotations

from torchbus_trackers.aim import AimLogger
from torchbus_trackers.clearml import ClearMLLogger
from torchbus_trackers.comet import CometLogger
from torchbus_trackers.csv import CSVLogger
from torchbus_trackers.dvclive import DVCLiveLogger
from torchbus_trackers.mlflow import MLflowLogger
from torchbus_trackers.swanlab import SwanLabLogger
from torchbus_trackers.trackio import TrackioLogger

__all__ = [
    "AimLogger",
    "CSVLogger",
    "ClearMLLogger",
    "CometLogger",
    "DVCLiveLogger",
    "MLflowLogger",
    "SwanLabLogger",
    "TrackioLogger",
]
