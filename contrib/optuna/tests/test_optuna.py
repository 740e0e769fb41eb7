"""One study on several ranks: hyperparameters, pruning and values are rank 0's, and each trial is stored once."""

from __future__ import annotations

from torchbus.testing import fork_script

HEAD = """
import json, os, random, sys, time, optuna, torch
from torch import nn
from torch.utils.data import DataLoader
from torchbus import session
optuna.logging.set_verbosity(optuna.logging.ERROR)
data = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
found = {}

def ranks(**options): return session(strategy="ddp", devices=2, launch="fork", **options)

def suggest(trial):
    kind = trial.suggest_categorical("kind", ["SGD", "Adam"])
    return kind, trial.suggest_float("lr", 1e-4, 1e-1, log=True), trial.suggest_int("width", 1, 9), trial.suggest_float("dropout", 0, 0.9)

def train(kind, lr, width, dropout):
    model = nn.Sequential(nn.Linear(2, width), nn.Dropout(dropout), nn.Linear(width, 1))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=lr)
    for x in DataLoader(data, 4):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.item()

def objective(trial):
    return list(train(*suggest(trial)))[-1] + random.random()  # which differs between ranks

def told(study): return [[trial.number, trial.params, trial.value, trial.state.name] for trial in study.trials]
"""


def test_a_study_inside_the_block() -> None:
    found = fork_script(HEAD + """
def pruned(trial):
    for step, loss in enumerate(train(*suggest(trial))):
        trial.report(os.getpid() + trial.number, step)
        if trial.should_prune():
            raise optuna.TrialPruned()
    return loss

def fails(trial):
    trial.suggest_float("x", 0, 1)
    raise ValueError("no")

class Stop:
    def __call__(self, study, trial):
        if trial.number == 1: study.stop()

with ranks() as s:
    study = optuna.create_study()
    study.optimize(objective, n_trials=4)
    found["plain"] = s.all_gather_object(told(study))
    found["best"] = s.all_gather_object([study.best_value, study.best_params])
    for sampler in (optuna.samplers.GridSampler({"lr": [1e-3, 1e-2]}), optuna.samplers.CmaEsSampler() if "cmaes" in sys.modules else None):
        study = optuna.create_study(sampler=sampler)
        study.optimize(lambda trial: trial.suggest_float("lr", 1e-4, 1e-1) + random.random(), n_trials=2)
        found[f"{type(study.sampler).__name__}"] = s.all_gather_object(told(study))
    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0))
    study.optimize(pruned, n_trials=3)
    found["pruned"] = s.all_gather_object([[number, params, state] for number, params, _, state in told(study)])
    study = optuna.create_study()
    study.optimize(fails, n_trials=2, catch=(ValueError,))
    found["failed"] = s.all_gather_object(told(study))
    study = optuna.create_study(directions=["minimize", "maximize"])
    for _ in range(2):
        trial = study.ask({"lr": optuna.distributions.FloatDistribution(0, 1)})
        study.tell(trial, [trial.params["lr"], random.random()])
    found["asked"] = s.all_gather_object([[trial.params, trial.values] for trial in study.trials])
    study = optuna.create_study()
    study.enqueue_trial({"kind": "SGD", "lr": 0.01, "width": 3, "dropout": 0.5})
    study.optimize(objective, n_trials=9, callbacks=[Stop()])
    found["enqueued"] = s.all_gather_object(told(study))
    study = optuna.create_study()
    study.optimize(lambda trial: time.sleep(0.05 * trial.suggest_int("x", 1, 1)) or 1.0, timeout=0.2 + 0.3 * (not s.is_main))
    found["timeout"] = s.all_gather_object(told(study))
    try:
        study.optimize(objective, n_trials=1, n_jobs=2)
    except Exception as error:
        found["jobs"] = str(error)
    found["explain"] = s.explain()
found["restored"] = optuna.Study.ask.__module__
print(json.dumps(found))
""").json()
    for name in ("plain", "best", "GridSampler", "pruned", "failed", "asked", "enqueued", "timeout"):
        assert found[name][0] == found[name][1], name
    assert len(found["plain"][0]) == 4 and all(state == "COMPLETE" for *_, state in found["plain"][0])
    assert {state for *_, state in found["pruned"][0]} == {"COMPLETE", "PRUNED"}
    assert [state for *_, state in found["failed"][0]] == ["FAIL", "FAIL"]
    assert len(found["enqueued"][0]) == 2 and found["enqueued"][0][0][1]["width"] == 3
    assert 1 <= len(found["timeout"][0]) < 50
    assert "use n_jobs=1" in found["jobs"] and "rank 0's sampler" in " ".join(found["explain"].split())
    assert found["restored"].startswith("optuna")


def test_what_is_stored_is_stored_once() -> None:
    found = fork_script(HEAD + """
store = "sqlite:///study.db"
before = optuna.create_study(study_name="before", storage=store)
before.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
with ranks() as s:
    before.optimize(objective, n_trials=2)
    found["before"] = s.all_gather_object(told(before))
    inside = optuna.create_study(study_name="inside", storage=store, load_if_exists=True)
    inside.optimize(objective, n_trials=2)
    again = optuna.load_study(study_name="inside", storage=store)
    found["again"] = s.all_gather_object(told(again))
    try:
        optuna.create_study(study_name="inside", storage=store)
    except optuna.exceptions.DuplicatedStudyError:
        found["duplicated"] = len(s.all_gather_object(None))
stored = {name: told(optuna.load_study(study_name=name, storage=store)) for name in ("before", "inside")}
print(json.dumps(found | {"stored": stored}))
""").json()
    assert found["before"] == [found["stored"]["before"]] * 2 and len(found["before"][0]) == 4
    assert found["again"] == [found["stored"]["inside"]] * 2 and len(found["again"][0]) == 2
    assert found["duplicated"] == 2


def test_a_session_in_each_trial() -> None:
    found = fork_script(HEAD + """
def each(trial):
    before = trial.suggest_float("before", 0, 1)
    with ranks() as s:
        last = list(train(*suggest(trial)))[-1]
        trial.report(last, 0)
        both = s.all_gather_object([before, trial.params])
        assert both[0] == both[1]
        if trial.number == 1:
            raise optuna.TrialPruned()
    return last

for storage in (None, "sqlite:///each.db"):
    study = optuna.create_study(storage=storage)
    study.optimize(each, n_trials=2)
    found[str(storage)] = told(study)
print(json.dumps(found))
""").json()
    for trials in found.values():
        assert [state for *_, state in trials] == ["COMPLETE", "PRUNED"]
        assert all(set(params) == {"before", "kind", "lr", "width", "dropout"} for _, params, *_ in trials)
