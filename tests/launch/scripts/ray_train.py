"""A plain loop in Ray Train's train function: ray_train.py FOLDER OPTIONS TROUBLE MAX_FAILURES.

TROUBLE is that of launched.py, or "ask": another thread of rank 1's process asks in mid-course that
all ranks save and leave, once. Ray starts them again, and counts a failure.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

HERE = str(Path(__file__).parent)


def train(config: dict[str, Any]) -> None:
    """What Ray Train runs in a thread of each worker."""
    sys.path.insert(0, HERE)
    import launched

    launched.run(Path(config["folder"]), config["options"], config["trouble"])


def main(folder: str, options: str, trouble: str, max_failures: str) -> None:
    # its sockets need a short path, and it may still write after its end
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as short:
        ray.init(num_cpus=2, include_dashboard=False, _temp_dir=short)
        TorchTrainer(
            train,
            train_loop_config={
                "folder": folder,
                "options": json.loads(options),
                "trouble": trouble,
            },
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                storage_path=f"{folder}/ray",
                failure_config=FailureConfig(max_failures=int(max_failures)),
            ),
        ).fit()
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
