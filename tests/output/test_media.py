"""Pictures and histograms arrive at the real clients, offline."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from torchbus_testing.scripts import run_script

SCRIPT = (Path(__file__).parent / "scripts" / "media_everywhere.py").read_text("utf-8")
NEEDED = ("tensorboard", "wandb", "neptune", "mlflow", "trackio", "PIL")
missing = [name for name in NEEDED if find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
]


def test_every_client_keeps_pictures_and_histograms(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    environment = {"TRACKIO_DIR": str(tmp_path / "trackio")}
    result = run_script(SCRIPT, cwd=tmp_path, env=environment, timeout_s=580).ok()
    assert result.stdout.count("0 failed") == 5
    (folder,) = (tmp_path / "tensorboard").iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    assert set(events.Tags()["images"]) == {"samples/a b", "grey"}
    assert [one.step for one in events.Images("grey")] == [0, 1, 2]
    (histogram, *_) = events.Histograms("w")
    counted = histogram.histogram_value
    assert (counted.num, counted.sum, counted.min, counted.max) == (100, 4950.0, 0.0, 99.0)
    assert sum(counted.bucket) == 100 and counted.bucket[-4:] == [25.0] * 4
    pictures = {
        "wandb": tmp_path.glob("wandb/offline-run-*/files/media/images/**/*.png"),
        "mlflow": tmp_path.glob("mlruns/**/images/*.png"),
        "trackio": tmp_path.glob("trackio/media/**/*.png"),
        "local": tmp_path.glob("torchbus-logs/*/media/*.png"),
    }
    assert {name: len(list(found)) for name, found in pictures.items()} == dict.fromkeys(
        pictures, 6
    )
