"""The strategy ``ft``: replicas that leave and join while the run continues."""

from __future__ import annotations

from typing import Any, Literal

import torch.distributed as dist
from torchbus.plugin import Context, World, hookimpl

from torchbus_ft._compat import require_torchft
from torchbus_ft.averaging import AcrossReplicas, SharedBuffers
from torchbus_ft.commits import Commits
from torchbus_ft.live import Live
from torchbus_ft.local import ALGORITHMS, PeriodicAveraging
from torchbus_ft.options import FTArguments
from torchbus_ft.passes import PassCounter, Resumed
from torchbus_ft.replicas import ReplicaLink
from torchbus_strategy import groups, process_group
from torchbus_strategy.backward import gradients, reduction
from torchbus_strategy.parameters import averaging
from torchbus_strategy.parameters import trained as strategy_trained
from torchbus_strategy.strategy import Strategy


class FT(Strategy):
    """Averages gradients over replicas that leave and join. Each session is one replica.

    A replica has one rank or several. Before each step the replicas agree on who takes part, by
    torchft's lighthouse. If a replica dies, the others drop the step, and repeat it without that
    replica. A new replica gets the state of the others while they train.

    Args:
        lighthouse: the URL of the lighthouse; TORCHFT_LIGHTHOUSE by default.
        replica: the name of this replica; REPLICA_GROUP_ID by default, or else a random name.
        min_replicas: with fewer, a replica waits.
        timeout_s: seconds until a collective, or the transfer of 1 MB of the state, has failed.
        quorum_timeout_s: seconds that a replica waits for the others before a step.
        host: the address of this machine for the other replicas. By default it is the address from
            which the machine reaches the lighthouse.
        sync_every: with ``gradient_algorithm="local_sgd"`` or ``"diloco"``, the steps of each
            replica between two averages.
        replica_strategy: how the ranks of one replica share the work: "ddp", or "fsdp", which
            shards the model over them, by torchbus-sharded.

    Further arguments are those of ``Strategy``. Refused are ``sync_buffers``, except under a
    ``gradient_algorithm``, where it holds within a replica, and with ``replica_strategy="fsdp"``
    all of them.

    Raises:
        UsageError: torchft is not installed, or an option has another type or value.

    Source: https://github.com/pytorch/torchft; Douillard et al., DiLoCo,
    https://arxiv.org/abs/2311.08105
    """

    name = "ft"
    engine = "gradients are averaged over the replicas after backward"
    gradient_algorithms = ALGORITHMS
    """Values of ``gradient_algorithm`` that torchbus-compress leaves to this strategy."""

    def __init__(
        self,
        *,
        lighthouse: str | None = None,
        replica: str | None = None,
        min_replicas: int = 1,
        timeout_s: float = 30.0,
        quorum_timeout_s: float = 60.0,
        host: str | None = None,
        sync_every: int = 32,
        replica_strategy: Literal["ddp", "fsdp"] = "ddp",
        **given: Any,
    ) -> None:
        super().__init__(**given)
        require_torchft()
        self._given = FTArguments(
            lighthouse,
            replica,
            min_replicas,
            timeout_s,
            quorum_timeout_s,
            host,
            sync_every,
            replica_strategy,
            tuple(given),
        )
        if self._given.shards:
            self.owns = ("replicas",)  # fsdp owns the strategy
            self.companions = (*self.companions, "fsdp")
        self._replicas: ReplicaLink | None = None
        self._commits: Commits | None = None

    @property
    def participants(self) -> int:
        """The number of replicas in the current quorum."""
        return 1 if self._replicas is None else self._replicas.count

    @property
    def steps(self) -> int:
        """The number of committed steps since the first replica started."""
        return 0 if self._replicas is None else self._replicas.steps

    @hookimpl(tryfirst=True)
    def launch(self, session: Context) -> World:
        self._resolved = self._given.resolved()
        self._given.check(session)
        session.start_ranks(self.form, alone=True)
        groups.arrange_ranks(session, dp=session.world_size)
        session.change_world(divides_anew=True)
        return session.world

    @hookimpl(trylast=True)
    def session_start(self, session: Context) -> None:
        if self._given.shards:
            self.backend = dist.get_backend()
            self.start(session)  # fsdp has joined the ranks
        else:
            super().session_start(session)

    @hookimpl
    def parameters_may_differ(self, session: Context) -> bool | None:
        """True: parameters differ while replicas step independently between two averages."""
        return True if session.options.get("gradient_algorithm") in ALGORITHMS else None

    def start_alone(self, session: Context) -> None:
        self.options.check_device(session.device)
        self.backend = process_group.join_ranks(session, self.backend)
        self.start(session)

    def start(self, session: Context) -> None:
        """Connect to the other replicas. All ranks of this replica call it."""
        session.steps.follow()
        passes = PassCounter(session, self._resolved.name)
        live = Live(session, self._resolved.name, passes)
        self._replicas = replicas = ReplicaLink(session, self._resolved, live.state, live.load)
        self._commits = commits = Commits(session, replicas, passes, live)
        for part in (passes, live, commits, Resumed(replicas, passes)):
            session.bus.register(part, f"ft.{type(part).__name__.lower()}")
        if self._given.shards:
            from torchbus_ft.sharded import share

            share(session, replicas, live, commits.averaged)
        else:
            self._synchronise(session, replicas, live, commits)

    def _synchronise(
        self, session: Context, replicas: ReplicaLink, live: Live, commits: Commits
    ) -> None:
        """Average gradients over the ranks of this replica, and then over the replicas."""
        algorithm = session.options.get("gradient_algorithm", "allreduce")
        if algorithm in ALGORITHMS:
            every = self._given.sync_every
            share = SharedBuffers(live.buffers, replicas).copy_from_rank0
            commits.local = PeriodicAveraging(
                session, replicas, algorithm, every, commits.decide, share
            )
            session.bus.register(commits.local, "ft.local")

        def reductions(trained: strategy_trained.TrainedParameters) -> reduction.Reductions:
            live.trained = trained
            if commits.local is not None:
                return reduction.AllAfterBackward(trained, averaging.mean_over)
            found = AcrossReplicas(trained, replicas, live, commits.averaged)
            replicas.on_change.append(found.drop)
            return found

        live.gradients = gradients.GradientSync(
            session, self.options, self.division(session), reductions, commits.average_held
        )
        session.bus.register(live.gradients, "ft.gradients")

    @hookimpl
    def explain_lines(self, session: Context) -> dict[str, list[str]]:
        replicas, commits = self._replicas, self._commits
        if replicas is None or commits is None:
            return {}
        now = f"replica {self._resolved.name!r} of now {replicas.count}"
        steps = f"{replicas.steps} steps, {commits.dropped} dropped"
        return {"strategy": [f"ft over {self.backend}: {now}; {steps}; {self.how()}"]}
