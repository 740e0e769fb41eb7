import json
import random
import sys
import time

import optuna
from study_head import found, objective, ranks, suggest, told, train


def pruned(trial):
    worse = trial.number * (1 if s.is_main else -1)  # with rank 1's values, no trial is pruned
    for step, loss in enumerate(train(*suggest(trial))):
        trial.report(worse, step)
        if trial.should_prune():
            raise optuna.TrialPruned()
    return loss


def fails(trial):
    trial.suggest_float("x", 0, 1)
    raise ValueError("no")


class Stop:
    def __call__(self, study, trial):
        if trial.number == 1:
            study.stop()


with ranks() as s:
    study = optuna.create_study()
    study.optimize(objective, n_trials=4)
    found["plain"] = s.all_gather_object(told(study))
    found["best"] = s.all_gather_object([study.best_value, study.best_params])
    for sampler in (
        optuna.samplers.GridSampler({"lr": [1e-3, 1e-2]}),
        optuna.samplers.CmaEsSampler() if "cmaes" in sys.modules else None,
    ):
        study = optuna.create_study(sampler=sampler)
        study.optimize(
            lambda trial: trial.suggest_float("lr", 1e-4, 1e-1) + random.random(), n_trials=2
        )
        found[f"{type(study.sampler).__name__}"] = s.all_gather_object(told(study))
    study = optuna.create_study(
        pruner=optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0)
    )
    study.optimize(pruned, n_trials=3)
    found["pruned"] = s.all_gather_object(
        [[number, params, state] for number, params, _, state in told(study)]
    )
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
    study.optimize(
        lambda trial: time.sleep(0.05 * trial.suggest_int("x", 1, 1)) or 1.0,
        timeout=0.2 + 0.3 * (not s.is_main),
    )
    found["timeout"] = s.all_gather_object(told(study))
    try:
        study.optimize(objective, n_trials=1, n_jobs=2)
    except Exception as error:
        found["jobs"] = str(error)
    found["explain"] = s.explain()
found["restored"] = optuna.Study.ask.__module__
print(json.dumps(found))
