"""A study whose first trial ends on each rank by the error that the argument names."""

import json
import sys

import optuna
from study_head import ranks

errors = {"ValueError": ValueError, "TrialPruned": optuna.TrialPruned}
named = json.loads(sys.argv[1])


def objective(trial):
    value = trial.suggest_float("x", 0, 1)
    if trial.number == 0 and named[s.rank]:
        raise errors[named[s.rank]]("no")
    if "early" in sys.argv:
        s.barrier()
    return value


with ranks() as s:
    study = optuna.create_study()
    study.optimize(objective, n_trials=2, catch=(ValueError,))
    states = s.all_gather_object([trial.state.name for trial in study.trials])
print(json.dumps(states))
