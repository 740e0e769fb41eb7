"""The command line by which ranks of a script with Hydra join rank 0's job, in its folder."""

from __future__ import annotations

import sys
from typing import Any

WITH_VALUE = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd")
MULTIRUN = ("-m", "--multirun")
OURS = ("hydra.run.dir", "hydra.output_subdir", "hydra/job_logging", "hydra.mode")


def job() -> Any:
    """Return Hydra's configuration of the running job, or None without Hydra."""
    module = sys.modules.get("hydra.core.hydra_config")
    if module is None or not module.HydraConfig.initialized():
        return None
    return module.HydraConfig.get()


def arguments_of(config: Any, given: list[str]) -> list[str]:
    """Return the command line of a rank that joins this job.

    The command line has the job's overrides, also those of a multirun, and rank 0's folder. It
    turns off the configuration and the log that Hydra would write there.
    """
    flags: list[str] = []
    remaining = iter(given)
    for word in remaining:
        if word in WITH_VALUE:
            flags += [word, next(remaining, "")]
        elif word.startswith("-") and word not in MULTIRUN:
            flags.append(word)
    retained = [one for one in config.overrides.hydra if one.split("=")[0].lstrip("+~") not in OURS]
    folder = str(config.runtime.output_dir).replace("\\", "\\\\").replace("'", "\\'")
    mine = [f"hydra.run.dir='{folder}'", "hydra.output_subdir=null", "hydra/job_logging=none"]
    return [*flags, *config.overrides.task, *retained, *mine]
