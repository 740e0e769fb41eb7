"""Rank 0 makes every decision of a study, and broadcasts it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import optuna
from optuna import Study, TrialPruned
from optuna.distributions import BaseDistribution
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState
from torchbus import objects
from torchbus.plugin import Context, RanksDiverged, UsageError, hookimpl

T = TypeVar("T")
Values = float | Sequence[float] | None
Objective = Callable[[Trial], float | Sequence[float]]
FAILED = (
    "the objective failed on rank {} in another way than on the others: {}: {}. `catch=` takes an"
    " error that all ranks raise; share what one rank has seen by s.all_gather_object"
)
Callback = Callable[[Study, FrozenTrial], None]


class OneStudy:
    """Makes rank 0's sampler, pruner and storage decide for all ranks, which get copies.

    So ``suggest_*`` and ``should_prune`` return the same on all ranks, and a trial gets the value
    that rank 0's objective returned. It works for a study inside the block, and for a session in
    each trial. All ranks call the same methods of a study in the same order, like collectives.

    Raises:
        UsageError: ``study.optimize`` is called with ``n_jobs`` other than 1.
        RanksDiverged: an objective failed on another rank.
    """

    @hookimpl(trylast=True)
    def session_start(self, session: Context) -> None:
        if session.world_size == 1:
            return
        self._session = session
        self._known: weakref.WeakSet[Study] = weakref.WeakSet()
        self._follow_those_alive()
        for owner in (optuna, optuna.study):
            for name in ("create_study", "load_study"):
                session.replace(owner, name, self._made)
        session.replace(Study, "ask", self._ask)
        session.replace(Study, "tell", self._tell)
        session.replace(Study, "optimize", self._optimize)
        session.replace(Trial, "_suggest", self._suggest)
        session.replace(Trial, "should_prune", self._should_prune)

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]] | None:
        return (
            None
            if session.world_size == 1
            else {"notes": ["optuna: rank 0's sampler, pruner and storage decide for all ranks"]}
        )

    # Studies -------------------------------------------------------------------------------------

    def _follow_those_alive(self) -> None:
        """Copy rank 0's studies that were made before the block. All ranks call it."""
        studies = sorted(objects.alive(Study), key=lambda study: study.study_name)
        summaries = self._session.all_gather_object(
            [summarise_study(study) for study in studies] if self._session.is_main else None
        )[0]
        by_name = {one.name: one for one in summaries}
        for study in studies:
            self._known.add(study)
            if not self._session.is_main and study.study_name in by_name:
                follow(study, by_name[study.study_name])
        for trial in objects.alive(Trial) if not self._session.is_main else ():
            if trial.study.study_name in by_name:
                follow_trial(trial)

    def _made(self, original: Callable[..., Study]) -> Callable[..., Study]:
        def make(*args: object, **options: object) -> Study:
            made: list[Study] = []

            def on_rank0() -> StudySummary:
                made.append(original(*args, **options))
                return summarise_study(made[0])

            summary = of_rank0(self._session, on_rank0)
            study = made[0] if made else replica_make(summary, options)
            self._known.add(study)
            return study

        return make

    def _ask(self, original: Callable[..., Trial]) -> Callable[..., Trial]:
        def ask(study: Study, *args: object, **options: object) -> Trial:
            if study not in self._known and not isinstance(study._storage, InMemoryStorage):
                summary = of_rank0(self._session, partial(summarise_study, study))
                if not self._session.is_main:
                    follow(study, summary)
            self._known.add(study)
            return original(study, *args, **options)

        return ask

    # Trials --------------------------------------------------------------------------------------

    def _suggest(self, original: Callable[..., T]) -> Callable[..., T]:
        def suggest(trial: Trial, name: str, distribution: BaseDistribution) -> T:
            value = of_rank0(self._session, partial(original, trial, name, distribution))
            if not self._session.is_main:
                trial._fixed_params = {**trial._fixed_params, name: value}
                original(trial, name, distribution)
            return value

        return suggest

    def _should_prune(self, original: Callable[..., bool]) -> Callable[..., bool]:
        def should_prune(trial: Trial) -> bool:
            return bool(of_rank0(self._session, partial(original, trial)))

        return should_prune

    def _tell(self, original: Callable[..., T]) -> Callable[..., T]:
        def tell(
            study: Study,
            trial: Trial | int,
            values: Values = None,
            state: TrialState | None = None,
            skip_if_finished: bool = False,
        ) -> T:
            values, state = of_rank0(self._session, lambda: (values, state))
            return original(study, trial, values, state, skip_if_finished)

        return tell

    def _optimize(self, original: Callable[..., None]) -> Callable[..., None]:
        def optimize(
            study: Study,
            func: Objective,
            n_trials: int | None = None,
            timeout: float | None = None,
            n_jobs: int = 1,
            catch: object = (),
            callbacks: Iterable[Callback] | None = None,
            **options: object,
        ) -> None:
            if n_jobs != 1:
                raise UsageError(
                    f"study.optimize(n_jobs={n_jobs}): the ranks of a session run one trial at a"
                    " time, together; use n_jobs=1"
                )
            every = [*(callbacks or ()), self._stop_after(timeout)]
            original(study, self._alike(func), n_trials, None, 1, catch, every, **options)

        return optimize

    def _stop_after(self, timeout_s: float | None) -> Callback:
        """Return a callback that stops the study on all ranks when rank 0's stops or times out."""
        begun_s = time.monotonic()

        def stop_together(study: Study, trial: FrozenTrial) -> None:
            late = timeout_s is not None and time.monotonic() - begun_s >= timeout_s
            if of_rank0(self._session, lambda: late or study._stop_flag):
                study.stop()

        return stop_together

    def _alike(self, func: Objective) -> Objective:
        """Return an objective that returns rank 0's value on all ranks.

        An error that all ranks raise is the trial's. If only some raise it, or they raise different
        ones, all raise TrialPruned if the first of these ranks was pruned, and otherwise
        RanksDiverged.
        """

        def objective(trial: Trial) -> float | Sequence[float]:
            value: float | Sequence[float] | None = None
            error: Exception | None = None
            try:
                value = func(trial)
            except Exception as raised:
                error = raised
            outcomes = self._outcomes(value, error)
            if error is not None and len({kind for _, kind, _ in outcomes}) == 1:
                raise error
            failed = [(rank, kind, text) for rank, (_, kind, text) in enumerate(outcomes) if kind]
            if failed and failed[0][1] == TrialPruned.__name__:
                raise TrialPruned(failed[0][2])
            if failed:
                raise RanksDiverged(FAILED.format(*failed[0])) from error
            agreed: float | Sequence[float] = outcomes[0][0]
            return agreed

        return objective

    def _outcomes(
        self, value: float | Sequence[float] | None, error: Exception | None
    ) -> list[tuple[Any, str, str]]:
        """Gather what the objective returned, or the error's class and text, of every rank.

        A rank whose objective failed early may wait for ranks that wait for it. The report of such
        a deadlock quotes the error.
        """
        kind, job = type(error).__name__ if error else "", self._session.job
        if error is not None and job is not None:
            job.wait_in(f"study.optimize after {kind}: {error}")
        outcomes = self._session.all_gather_object((value, kind, str(error)))
        if job is not None:
            job.go_on()
        return outcomes


def of_rank0(session: Context, ask: Callable[[], T]) -> T:
    """Return, or raise, on all ranks what ``ask`` returns or raises on rank 0.

    All ranks call it. Only rank 0 calls ``ask``.
    """
    value: T | None = None
    error: Exception | None = None
    if session.is_main:
        try:
            value = ask()
        except Exception as raised:
            error = raised
    value, failure = session.all_gather_object((value, error))[0]
    if error is not None or failure is not None:
        raise error or failure
    return cast(T, value)


class StudySummary(NamedTuple):
    """The part of rank 0's study that the other ranks copy."""

    name: str
    directions: list[StudyDirection]
    trials: list[FrozenTrial]


def summarise_study(study: Study) -> StudySummary:
    """Return the part of a study that other ranks copy."""
    return StudySummary(study.study_name, study.directions, study.get_trials(deepcopy=False))


def replica_make(summary: StudySummary, options: Mapping[str, Any]) -> Study:
    """Return a copy of rank 0's study, with the sampler and pruner that this rank was given."""
    given = {name: options[name] for name in ("sampler", "pruner") if name in options}
    return Study(summary.name, _storage_of(summary), **given)


def follow(study: Study, summary: StudySummary) -> None:
    """Turn a study into a copy of rank 0's."""
    study._storage = _storage_of(summary)
    study._study_id = study._storage.get_study_id_from_name(summary.name)
    study.study_name = summary.name
    study._thread_local.cached_all_trials = None


def follow_trial(trial: Trial) -> None:
    """Let a trial that is older than its study's copy use the copy."""
    storage = trial.study._storage
    if trial.storage is not storage:
        number = trial._cached_frozen_trial.number
        trial._trial_id = storage.get_trial_id_from_study_id_trial_number(
            trial.study._study_id, number
        )
        trial.storage = storage


def _storage_of(summary: StudySummary) -> InMemoryStorage:
    storage = InMemoryStorage()
    study = storage.create_new_study(summary.directions, summary.name)
    for trial in summary.trials:
        storage.create_new_trial(study, trial)
    return storage
