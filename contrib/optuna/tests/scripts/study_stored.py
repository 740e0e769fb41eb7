import json

import optuna
from study_head import found, objective, ranks, told

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
stored = {
    name: told(optuna.load_study(study_name=name, storage=store)) for name in ("before", "inside")
}
print(json.dumps(found | {"stored": stored}))
