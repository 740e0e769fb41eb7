"""SwanLab: the files that it writes offline."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("swanlab") is None, reason="swanlab is not installed"),
]


def test_two_ranks_have_one_run(tmp_path, log):
    pytest.importorskip("torchbus_ddp")
    log("SwanLabLogger", {"offline": True, "project": "digits"}, ranks=2)
    (run,) = (tmp_path / "swanlog").glob("run-*")
    assert len(list(run.glob("media/image/003-*.png"))) == 2
    text = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert b"rank0" in text and b"train/acc@1" in text and b"rank1" not in text
