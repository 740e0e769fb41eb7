"""The oldest pluggy that the core declares, and the last one that read the properties of plugins."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from torchbus_testing.scripts import run, run_script

CORE = Path(__file__).resolve().parents[1]
OLDEST = re.search(r'"pluggy>=([\d.]+)"', (CORE / "pyproject.toml").read_text("utf-8"))
LOOP = """
    import pluggy, torch
    from torch.utils.data import DataLoader
    from torchbus import session

    plugins = ["average", "clip", "earlystop", "gpu", "log", "progress", "sampler", "throughput"]
    options = dict(accumulate_grad_batches=2, gradient_clip_val=1.0, precision="bf16-mixed")
    with session(*plugins, devices=2, launch="fork", accelerator="cpu", **options) as s:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in DataLoader(torch.randn(16, 4), batch_size=2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            s.log("is_last", float(s.is_last_batch))
    print(pluggy.__version__)
"""


@pytest.mark.slow  # pip fetches it
@pytest.mark.parametrize("version", [OLDEST and OLDEST[1] + ".0", "1.6.0"])
def test_a_loop_runs(tmp_path, version):
    words = ["--quiet", "--no-deps", "--target", str(tmp_path), f"pluggy=={version}"]
    assert run([sys.executable, "-m", "pip", "install", *words], timeout_s=100).ok()
    result = run_script(LOOP, env={"PYTHONPATH": str(tmp_path)})
    assert result.ok() and result.stdout.splitlines()[-1] == version
