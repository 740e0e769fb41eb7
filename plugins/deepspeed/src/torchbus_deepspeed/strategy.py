"""The strategies ``deepspeed`` and ``deepspeed_stage_1`` to ``deepspeed_stage_3_offload``."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torchbus.plugin import Context, UsageError, World, hookimpl

from torchbus_deepspeed import _compat
from torchbus_deepspeed.backward import ShardedReductions, ShardedSync
from torchbus_deepspeed.config import DeepSpeedConfig, Given, require_deepspeed
from torchbus_deepspeed.engines import Clipping, Engines, InputCast
from torchbus_deepspeed.states import CheckpointEvents
from torchbus_deepspeed.steps import DeepSpeedSteps, Intake
from torchbus_launch.relaunch import environment_variables
from torchbus_strategy import options
from torchbus_strategy.checks import replicas
from torchbus_strategy.strategy import Strategy

ONE_RANK = (
    "strategy='{}' on one rank: {} needs a process group, and with one rank torchbus opens none."
    " Pass devices=2 or more, or leave it out"
)
DIVIDED = {
    0: "nothing is divided; gradients are averaged by DeepSpeed's all-reduce after backward",
    1: "optimizer states are divided over ranks",
    2: "gradients and optimizer states are divided over ranks",
    3: "parameters, gradients and optimizer states are divided over ranks",
}


class DeepSpeed(Strategy):
    """DeepSpeed's ZeRO engines under an unchanged loop: one for each model of each optimizer.

    Args:
        config: DeepSpeed's config as a dict or the path of a JSON file. With None, it is the file
            that DEEPSPEED_CONFIG names. Values "auto" are filled from the loop. The default stage
            is 2.
        loss_reduction: "mean" if the loss is a mean over samples, "sum" if it is a sum.
        loss_weight: what weights a rank's gradient in the mean: "auto", "samples" or "tokens", as
            for ddp.
        sync_loss: whether the loss tensor holds the mean (sum) over all ranks after ``backward``.
        backend: a backend of torch.distributed, or None for the usual one of the device.

    Raises:
        UsageError: if DeepSpeed is missing or too old, or the config is invalid.

    Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models, SC 2020; https://www.deepspeed.ai/docs/config-json.
    """

    name = "deepspeed"
    gradients_elsewhere = True
    steps_in = torch.float32
    unfreezes = False
    stage: ClassVar[int | None] = None
    """The ZeRO stage, or None if the config sets it."""
    offload: ClassVar[bool] = False
    """Whether optimizer states, and at stage 3 parameters, are in main memory."""

    def __init__(
        self,
        *,
        config: Given = None,
        loss_reduction: Literal["mean", "sum"] = "mean",
        loss_weight: Literal["auto", "samples", "tokens"] = "auto",
        sync_loss: bool = True,
        backend: str | None = None,
    ) -> None:
        super().__init__(
            backend=backend,
            loss_reduction=loss_reduction,
            loss_weight=loss_weight,
            sync_loss=sync_loss,
        )
        self.config = DeepSpeedConfig(config, self.name, self.stage, self.offload)
        require_deepspeed(self.name)

    @hookimpl
    def launch(self, session: Context) -> World:
        if session.launcher.has_many_ranks():
            _compat.load()  # ranks that are forked share the imports
            self.config.build()
        return super().launch(session)

    def start_alone(self, session: Context) -> None:
        """Do nothing with a single rank.

        Raises:
            UsageError: if the config asks for features that need a process group.
        """
        if self.config.describe():
            raise UsageError(ONE_RANK.format(self.name, self.config.describe().lstrip("; ")))

    def average(self, tensors: list[Tensor]) -> None:
        """At stage 0, replace each gradient with its mean over ranks, in its dtype.

        All ranks must call this.
        """
        _compat.average(tensors)

    def division(self, session: Context) -> options.Division:
        """Return the division of data, in which ranks without samples also run their backward.

        ZeRO's collectives in it need all ranks.
        """
        if self.config.stage == 0:
            return super().division(session)
        return options.Division(
            replicas.watch_replicas(session), stream=session.rank, runs_uncounted=True
        )

    def start(self, session: Context) -> None:
        """Start DeepSpeed. All ranks must call this."""
        self._open(session)
        if self.config.stage == 0:
            session.bus.register(self.config.optimizer, f"{self.name}.optimizer")
            return super().start(session)
        self._register(session, Engines(session, self.config, self.name))

    def _open(self, session: Context) -> None:
        """Open DeepSpeed's communication, and silence warnings that a user can't act on."""
        session.on_close.callback(_compat.close_comm)
        # stage 3 replaces functional.linear
        session.on_close.callback(setattr, functional, "linear", functional.linear)
        if session.device.type == "cpu":
            session.on_close.callback(_compat.use_cpu())
        session.on_close.enter_context(_compat.quiet())
        session.on_close.enter_context(_compat.no_deprecations())
        session.on_close.enter_context(environment_variables({"LOCAL_RANK": session.local_rank}))
        session.replace(_compat.comm_module(), "build_shm_op", lambda _: lambda: None)
        for owner, name, make in _compat.replacements():
            session.replace(owner, name, make)
        self.config.check(session)
        _compat.open_comm()

    def _register(self, session: Context, engines: Engines) -> None:
        gradients = ShardedSync(
            engines,
            session,
            self.options,
            self.division(session),
            lambda trained: ShardedReductions(engines, trained),
        )
        session.bus.register(gradients, f"{self.name}.gradients")
        session.bus.register(engines, f"{self.name}.engines")
        session.bus.register(Clipping(engines), f"{self.name}.clipping")
        session.bus.register(CheckpointEvents(engines), f"{self.name}.saved_gradients")
        session.bus.register(Intake(engines), f"{self.name}.intake")
        if self.config.is_low_precision:
            session.bus.register(InputCast(engines), f"{self.name}.inputs")
        # registered last, as clipping must see every gradient
        clip = 0.0 if session.options.get("gradient_clip_val") else self.config.clip
        session.bus.register(DeepSpeedSteps(engines, clip), f"{self.name}.steps")

    def how(self) -> str:
        """Return the text of ``explain()`` after the strategy's name and backend."""
        stage = self.config.stage
        return f"ZeRO stage {stage}: {DIVIDED[stage]}{self.config.describe()}"


class Stage1(DeepSpeed):
    """ZeRO stage 1: optimizer states are divided."""

    name = "deepspeed_stage_1"
    stage = 1


class Stage2(DeepSpeed):
    """ZeRO stage 2: gradients and optimizer states are divided."""

    name = "deepspeed_stage_2"
    stage = 2


class Stage2Offload(Stage2):
    """Stage 2, with optimizer states in main memory."""

    name = "deepspeed_stage_2_offload"
    offload = True


class Stage3(DeepSpeed):
    """ZeRO stage 3: parameters, gradients and optimizer states are divided."""

    name = "deepspeed_stage_3"
    stage = 3


class Stage3Offload(Stage3):
    """Stage 3, with optimizer states and parameters in main memory."""

    name = "deepspeed_stage_3_offload"
    offload = True
