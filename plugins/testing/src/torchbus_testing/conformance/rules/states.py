"""Rules about saved states and resumed runs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import AdamW

from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.run import BATCH, FEATURES, LoopRun

SAVED_AFTER = 4
EPOCHS = 3


def state_dicts(run: LoopRun) -> None:
    """In the middle of training, state_dict() has torch's names and whole tensors."""
    model = run.model()
    optimizer = AdamW(model.parameters(), lr=0.01)
    retained = {}
    for number, xy in enumerate(run.loader(4 * BATCH)):
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        optimizer.step()
        if number == 1:
            run.note_state(model=model, optimizer=optimizer)
            retained = {key: value.clone() for key, value in model.state_dict().items()}
    run.note("names", list(retained))
    run.note("shapes", [list(value.shape) for value in retained.values()])
    run.note("types", [type(value).__name__ for value in retained.values()])
    copy = nn.Sequential(*[type(one)(*_sizes(one)) for one in run.model()]).to(run.dtype)
    copy.load_state_dict(retained)
    with torch.no_grad():
        run.note("outputs of a copy", copy(torch.ones(2, FEATURES, dtype=run.dtype)))


def _sizes(module: nn.Module) -> tuple[int, ...]:
    return (module.in_features, module.out_features) if isinstance(module, nn.Linear) else ()


def rewind(run: LoopRun) -> None:
    """A loop restores states that it has saved, and continues from there."""
    model = run.model()
    optimizer = run.optimizer(model)
    retained: list[dict[str, object]] = []
    for number, xy in enumerate(run.loader(4 * BATCH)):
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        optimizer.step()
        if number == 1:
            states = {key: value.clone() for key, value in model.state_dict().items()}
            retained = [states, _copied(optimizer.state_dict())]
        if number == 2:
            model.load_state_dict(retained[0])
            optimizer.load_state_dict(retained[1])
    run.note_state(model=model, optimizer=optimizer)


def _copied(state: dict[str, object]) -> dict[str, object]:
    """Return a copy of a state, whose tensors the optimizer does not change."""

    def copied(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return value.clone()
        return {k: copied(v) for k, v in value.items()} if isinstance(value, dict) else value

    return {key: copied(value) for key, value in state.items()}


def checkpoint(run: LoopRun) -> None:
    """A run resumed from s.save(), on another number of ranks, ends as one process ends."""
    path = run.folder / "checkpoint"
    model = run.model(seed=run.stage)
    optimizer = AdamW(model.parameters(), lr=0.01)
    loader = run.loader(2 * BATCH + 5, batch=BATCH * run.parts, shuffle=True)
    if run.stage:
        run.here.load(path)
    steps = 0
    for _ in _epochs(run):
        for xy in loader:
            optimizer.zero_grad()
            run.loss(model, xy).backward()
            optimizer.step()
            steps += 1
            if steps == SAVED_AFTER and _is_cut(run):
                return run.here.save(path)
    run.note_state(model=model)


def _is_cut(run: LoopRun) -> bool:
    """Whether another session continues this run, which happens only with several ranks."""
    return not run.is_alone and run.here.world_size > 1 and not run.stage


def _epochs(run: LoopRun) -> Iterable[int]:
    if run.is_alone:
        return range(EPOCHS)
    epochs: Iterable[int] = run.here.epochs(EPOCHS)
    return epochs


def then_others(ranks: int) -> tuple[int, ...]:
    """Return the worlds of a rule that saves on ``ranks`` ranks, and resumes on another number."""
    return (ranks, 3 if ranks == 2 else 2)


RULES = (
    Rule(
        "state-dict",
        state_dicts,
        "Return whole tensors from state_dict() on every rank, under the names that the model and"
        " the optimizer have without a session.",
    ),
    Rule(
        "rewind",
        rewind,
        "Accept in load_state_dict() what state_dict() has returned, and take parameters and"
        " states from there.",
    ),
    Rule(
        "checkpoint",
        checkpoint,
        "Save every parameter and every optimizer state, once: what rank 0 writes must not be only"
        " its own part. Restore all of it for any number of ranks.",
        options={"batch": "global"},
        needs=("checkpoint", "sampler"),
        worlds=then_others,
    ),
)
