"""Hydra, where ranks run the script again: one output folder for each job."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from torchbus_launch.relaunch import hydra_arguments
from torchbus_testing.scripts import run_script, write_script

SCRIPT = """
import hydra, os, torch
from torchbus import session

@hydra.main(version_base=None, config_path=None)
def main(config):
    from hydra.core.hydra_config import HydraConfig
    folder = HydraConfig.get().runtime.output_dir
    with session(strategy="ddp", devices=2, accelerator="cpu", launch="script") as s:
        seen = s.all_gather_object([folder, config.n])
        drawn = s.all_gather_object(torch.rand(1).item())  # as the job before has left them
        assert drawn == drawn[:1] * 2
        torch.save(seen, os.path.join(folder, "model.pt"))
        assert seen == [[folder, config.n]] * 2

main()
"""


def test_launched_ranks_get_the_arguments_of_rank_0_s_job() -> None:
    config = SimpleNamespace(
        overrides=SimpleNamespace(
            task=["+n=2"],
            hydra=["hydra.mode=MULTIRUN", "hydra.run.dir=elsewhere", "hydra.job.chdir=true"],
        ),
        runtime=SimpleNamespace(output_dir="/runs/it's/1"),
    )
    given = ["-m", "--config-name", "small", "+n=1,2", "hydra.job.chdir=true", "--cfg=job"]
    assert hydra_arguments(config, given) == [
        *("--config-name", "small", "--cfg=job", "+n=2", "hydra.job.chdir=true"),
        *("hydra.run.dir='/runs/it\\'s/1'", "hydra.output_subdir=null", "hydra/job_logging=none"),
    ]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("words", [["+n=1"], ["-m", "+n=1,2"]])
def test_jobs_have_one_folder(tmp_path: Path, words: list[str]) -> None:
    pytest.importorskip("hydra")
    run_script(write_script(tmp_path, SCRIPT), *words, cwd=tmp_path, timeout_s=150.0).ok()
    jobs = 2 if words[0] == "-m" else 1
    assert len(list(tmp_path.rglob("model.pt"))) == len(list(tmp_path.rglob(".hydra"))) == jobs
