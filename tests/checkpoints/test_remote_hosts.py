"""Checkpoints in a store, of a job on hosts that share no folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodes import run_nodes

SCRIPTS = Path(__file__).parent / "scripts"

LOOP = SCRIPTS / "remote_hosts.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_loop_goes_on_though_no_host_sees_the_others_folder(tmp_path: Path) -> None:
    outputs = []
    for name, cuts in (("whole", [0]), ("elsewhere", [7, 0])):
        place = tmp_path / name
        for number, cut in enumerate(cuts):
            hosts = [place / f"host{rank}" for rank in range(2)]
            if name == "elsewhere" and number:  # other machines
                hosts[0].rename(place / "host0 before")
                hosts[1].rename(place / "host1 before")
            for host in hosts:
                host.mkdir(parents=True, exist_ok=True)
            results = run_nodes([1, 2], LOOP, str(place), str(cut))
            assert [one.status for one in results] == [3 if cut else 0] * 3, results
        outputs.append(results[0].stdout.strip())
        assert "rank-2.safetensors" in {path.name for path in (place / "store").rglob("*")}
    assert outputs[1] == outputs[0].replace(" 0 [", " 1 [", 1)
