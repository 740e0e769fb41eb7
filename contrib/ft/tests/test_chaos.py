"""Four replicas, of which one after another is killed at a random moment, and restarted."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from ft_running import SCRIPTS, Lighthouse, assert_each_once, same

from torchbus_testing.forking import ForkServer

NAMES = "abcd"
KILLS, EPOCHS = 50, 20


class Lives:
    """Restarts a replica whenever it is killed."""

    def __init__(self, name: str, url: str, out: Path) -> None:
        self.name = name
        self._place = out / f"pid-{name}"
        self._at = out / f"at-{name}"
        self._words = ["--name", name, "--lighthouse", url, "--out", out, "--epochs", EPOCHS]
        self._words += ["--least", 3]  # so that two groups can't train separately
        self.error = ""
        self._thread = threading.Thread(target=self._live)
        self._thread.start()

    def _live(self) -> None:
        with ForkServer("torchft", "torchft.checkpointing") as server:
            while True:
                found = server.run(SCRIPTS / "chaos.py", *self._words, timeout_s=600)
                if found.status != -signal.SIGKILL:
                    self.error = found.stderr if found.status else ""
                    return

    @property
    def at(self) -> int:
        """The number of its steps, or -1 before the first."""
        return int(self._at.read_text()) if self._at.exists() else -1

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(self._place.read_text()), signal.SIGKILL)
        self._at.unlink(missing_ok=True)

    def wait(self) -> None:
        self._thread.join()


def kill_at_random(lives: list[Lives], chance: random.Random) -> int:
    """Kill one after another, each at a random moment after the last one trains again."""
    killed = 0
    while killed < KILLS and not any(one.error for one in lives):
        time.sleep(chance.uniform(0.1, 1.0))
        at = {one: one.at for one in lives}
        training = [one for one in lives if at[one] >= max(0, max(at.values()) - 1)]
        if len(training) == len(NAMES):
            chance.choice(training).kill()
            killed += 1
    return killed


def losses(out: Path, name: str) -> dict[int, float]:
    return {
        int(path.name.split("-")[2]): float(path.read_text()) for path in out.glob(f"loss-{name}-*")
    }


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_fifty_kills(tmp_path: Path) -> None:
    lighthouse = Lighthouse(heartbeat_timeout_ms=2000)
    lives = [Lives(name, lighthouse.url, tmp_path) for name in NAMES]
    try:
        killed = kill_at_random(lives, random.Random(0))
        trained = max((max(losses(tmp_path, name), default=0) for name in NAMES), default=0)
    finally:
        (tmp_path / "enough").touch()
        for one in lives:
            one.wait()
    lighthouse.close()
    assert not any(one.error for one in lives), "\n".join(one.error for one in lives)
    assert killed == KILLS and trained < EPOCHS - 1, "all were killed while others trained"
    ends = [tmp_path / f"end-{name}.pt" for name in NAMES]
    import torch

    first, *others = (torch.load(path) for path in ends)
    assert all(same(first, other) for other in others)
    assert_each_once(tmp_path, 1200, EPOCHS)
    compare_with_undisturbed(tmp_path)


def compare_with_undisturbed(out: Path) -> None:
    """The loss of each epoch is within that of undisturbed runs in other orders."""
    with ForkServer() as server:
        for seed in range(5):
            words = ["--name", f"plain{seed}", "--out", out, "--epochs", EPOCHS, "--plain"]
            server.run(SCRIPTS / "chaos.py", *words, "--seed", seed, "--batch", 12).ok()
    plain = [losses(out, f"plain{seed}") for seed in range(5)]
    for name in NAMES:
        for epoch, loss in losses(out, name).items():
            band = [one[epoch] for one in plain]
            assert min(band) / 3 < loss < max(band) * 3, (epoch, loss, band)
    last = [loss for name in NAMES for loss in losses(out, name).values()]
    assert min(last) < max(one[EPOCHS - 1] for one in plain) * 1.5
