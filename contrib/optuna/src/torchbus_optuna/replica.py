"""The copy of a study on ranks other than 0: in memory, so that only rank 0 stores it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from optuna import Study
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial


class Told(NamedTuple):
    """What rank 0 tells about a study."""

    name: str
    directions: list[StudyDirection]
    trials: list[FrozenTrial]


def tell(study: Study) -> Told:
    """Describe a study for other ranks."""
    return Told(study.study_name, study.directions, study.get_trials(deepcopy=False))


def make(told: Told, options: Mapping[str, Any]) -> Study:
    """A copy of rank 0's study, with this rank's sampler and pruner."""
    kept = {name: options[name] for name in ("sampler", "pruner") if name in options}
    return Study(told.name, _storage_of(told), **kept)


def follow(study: Study, told: Told) -> None:
    """Make a study a copy of rank 0's."""
    study._storage = _storage_of(told)
    study._study_id = study._storage.get_study_id_from_name(told.name)
    study.study_name = told.name
    study._thread_local.cached_all_trials = None


def follow_trial(trial: Trial) -> None:
    """Let a trial that was begun before its study was copied use the copy."""
    storage = trial.study._storage
    if trial.storage is not storage:
        number = trial._cached_frozen_trial.number
        trial._trial_id = storage.get_trial_id_from_study_id_trial_number(
            trial.study._study_id, number
        )
        trial.storage = storage


def _storage_of(told: Told) -> InMemoryStorage:
    storage = InMemoryStorage()
    study = storage.create_new_study(told.directions, told.name)
    for trial in told.trials:
        storage.create_new_trial(study, trial)
    return storage
