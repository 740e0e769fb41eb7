"""Rules about a session's behaviour towards the user and other plugins."""

from __future__ import annotations

import re
from collections import Counter

import torch

from torchbus_testing.conformance import judgement
from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.run import BATCH, LoopRun
from torchbus_testing.recorder import Recorder, RecordingLogger

EVENTS = ("before_backward", "after_backward", "before_optimizer_step", "after_optimizer_step")
THINGS = ("models", "optimizers", "loaders")


def events(run: LoopRun) -> None:
    """Other plugins get the events of each backward and each real step once, on every rank."""
    model = run.model()
    optimizer = run.optimizer(model)
    count = 0
    for xy in run.loader(2 * BATCH + 5):
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        optimizer.step()
        count += 1
    received = Counter(name for one in run.objects for name in one.names)
    for name in EVENTS:
        run.note(name, count if run.is_alone else received[name])


def log(run: LoopRun) -> None:
    """s.log() with sync_dist gives the mean over the samples of all ranks, at its step."""
    model = run.model()
    optimizer = run.optimizer(model)
    values = []
    for number, (x, y) in enumerate(run.loader(BATCH + 5), start=1):
        optimizer.zero_grad()
        run.loss(model, (x, y)).backward()
        optimizer.step()
        with torch.no_grad():
            error = (model(x) - y).abs().mean()
        if run.is_alone:
            values.append([number, error.item()])
        else:
            run.here.log("error", error, sync_dist=True)
    for one in run.objects:
        values = [list(pair) for pair in one.of("error")]
    if run.rank == 0:
        run.note("logged", values)


def explain(run: LoopRun) -> None:
    """s.explain() names the loop's own models, optimizers and loaders, and nothing internal."""
    model = run.model()
    optimizer = run.optimizer(model)
    loader = run.loader(2 * BATCH)
    for xy in loader:
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        optimizer.step()
    shown = dict.fromkeys(THINGS, 1) if run.is_alone else _shown(run.here.explain())
    for name in THINGS:
        run.note(f"{name} listed", shown[name])


def _shown(text: str) -> dict[str, int]:
    """Count the entries in sections of ``explain()``. Continuation lines are indented further."""
    sections = re.findall(r"^(\w+) +(.*(?:\n +.*)*)", text, re.M)
    found = {name: len(re.findall(r"\n {12}\S", body)) + 1 for name, body in sections}
    return {name: found.get(name, 0) for name in THINGS}


def unchanged(run: LoopRun) -> None:
    """After the block torch and the process are as before, and no process is left."""
    model = run.model()
    optimizer = run.optimizer(model)
    for xy in run.loader(2 * BATCH):
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        optimizer.step()


RULES = (
    Rule(
        "events",
        events,
        "Run the loop's own optimizer.step once per call, and no other optimizer's where plugins"
        " get its events.",
        objects=lambda: (Recorder(*EVENTS),),
    ),
    Rule(
        "log",
        log,
        "Open torch's process group (companion process_group), and keep session.share as"
        " torchbus-sampler sets it.",
        {"log_every_n_steps": 1},
        ("log",),
        objects=lambda: (RecordingLogger(),),
    ),
    Rule(
        "explain",
        explain,
        "Mark modules and optimizers that you make (mark_internal), or hold none.",
        essential=True,
    ),
    Rule(
        "unchanged",
        unchanged,
        "Undo on session.on_close all that you change, and use session.replace for functions.",
        judge=judgement.leaves_empty,
        essential=True,
    ),
)
