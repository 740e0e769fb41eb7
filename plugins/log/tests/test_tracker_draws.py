"""A logger changes no random number of the script."""

from __future__ import annotations

import random

import numpy
import torch
from torchbus import session

from torchbus_log.trackers.tracker import Tracker


def draws() -> list[float]:
    return [random.random(), float(numpy.random.rand()), torch.rand(1).item()]


class Drawing(Tracker):
    """A client that draws wherever the session waits for it."""

    name = "drawing"

    def import_client(self) -> None:
        draws()

    def open_run(self, session, config, offline):
        draws()
        if not offline:
            raise ConnectionError("no network")

    def send_metrics(self, metrics, step, epoch):
        pass

    def close_run(self, run, failed):
        draws()


def drawn(logger: Tracker | None) -> list[list[float]]:
    with session(logger=logger, seed=0) as s:
        found = [draws()]
        s.log("value", 1.0)
    return [*found, draws()]


def test_a_client_that_draws_changes_no_draw_of_the_script(recwarn) -> None:
    without = drawn(None)
    assert drawn(Drawing()) == without
    assert any("it continues offline" in str(one.message) for one in recwarn)
