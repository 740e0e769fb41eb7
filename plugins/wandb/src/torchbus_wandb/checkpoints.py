"""Saved files as artifacts."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from torchbus.plugin import hookimpl

if TYPE_CHECKING:
    import wandb


class Checkpoints:
    """Notes the files that ``torch.save`` writes, and uploads each once, when the run ends.

    So a run has one version of each file, however often it was overwritten.
    """

    def __init__(self) -> None:
        self._paths: dict[str, None] = {}

    @hookimpl(tryfirst=True)
    def save_file(self, path: str) -> None:
        self._paths[os.path.abspath(path)] = None

    def upload(self, run: wandb.Run) -> None:
        import wandb

        for path in filter(os.path.isfile, self._paths):
            name = re.sub(r"[^\w.-]", "_", f"{run.id}-{os.path.basename(path)}")
            artifact = wandb.Artifact(name, type="model")
            artifact.add_file(path)
            run.log_artifact(artifact)
