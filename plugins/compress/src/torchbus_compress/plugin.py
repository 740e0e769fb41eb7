"""The plugin: its option, and where it takes part in a session."""

from __future__ import annotations

import importlib.util
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torchbus import Session, hookimpl
from torchbus.errors import UsageError

from torchbus_compress import hooks
from torchbus_compress.averaging import AVERAGERS, Averager
from torchbus_compress.codecs import Bfloat16, Bytes

HOOKS = ("fp16", "bf16", "powersgd", "bytegrad")
ALGORITHMS = ("allreduce", *HOOKS, *AVERAGERS)


class Compress:
    """How gradients, or models, are averaged over ranks. Needs the strategy ddp, or one that is built on it.

    Args:
        gradient_algorithm: "allreduce": as they are. "fp16", "bf16", "bytegrad" (8 bits), "powersgd" (low rank): gradients travel in
            fewer bytes. "local_sgd", "decentralized", "low_precision_decentralized", "async": models are averaged, not gradients.

    Sources: see each algorithm; PowerSGD: Vogels et al., NeurIPS 2019.
    """

    def __init__(self, *, gradient_algorithm: str = "allreduce") -> None:
        if gradient_algorithm == "qadam":
            raise UsageError(
                "gradient_algorithm='qadam' is an optimizer of Bagua's that sends Adam's momentum, and torch's Adam does not let one: "
                "use 'bytegrad', which sends as many bytes"
            )
        if gradient_algorithm not in ALGORITHMS:
            raise UsageError(f"gradient_algorithm={gradient_algorithm!r} is unknown: use one of {', '.join(map(repr, ALGORITHMS))}")
        if gradient_algorithm == "powersgd" and importlib.util.find_spec("numpy") is None:
            raise UsageError("gradient_algorithm='powersgd' needs numpy, which torch's hook imports: pip install numpy")
        self.algorithm = gradient_algorithm
        self._session: Session | None = None
        self._averagers: dict[Optimizer, Averager] = {}
        self._stepped = False

    @hookimpl
    def session_start(self, session: Session) -> None:
        if self.algorithm != "allreduce" and "configure_ddp" not in session.bus.events():
            raise UsageError(
                f"gradient_algorithm={self.algorithm!r} changes what torch's DDP reducer sends, which this strategy does not use: use strategy='ddp' "
                "(under fsdp mixed_precision='bf16' sends parameters in 16 bits)"
            )
        self._session = session
        session.on_close.callback(self._averagers.clear)

    @hookimpl(optionalhook=True)
    def configure_ddp(self, session: Session, module: nn.Module, options: dict[str, Any]) -> DistributedDataParallel | None:
        if self.algorithm == "allreduce":
            return None
        ddp = DistributedDataParallel(module, **options)
        exact = list(module.parameters())[-1]
        hook, state = self._hook(session)
        ddp.register_comm_hook(state, hooks.with_exact(exact, hook))
        return ddp

    def _hook(self, session: Session) -> tuple[hooks.Hook, Any]:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        if self.algorithm in AVERAGERS:
            return hooks.local, None
        if self.algorithm == "fp16":
            return default_hooks.fp16_compress_hook, None
        if self.algorithm == "powersgd":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=10)  # type: ignore[no-untyped-call]
            return powerSGD_hook.powerSGD_hook, state
        return hooks.encoded(Bfloat16() if self.algorithm == "bf16" else Bytes()), None

    @hookimpl(optionalhook=True)
    def parameters_may_differ(self) -> bool | None:
        """Ranks step by themselves between two averages."""
        return True if self.algorithm in AVERAGERS else None

    @hookimpl(trylast=True)
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        session = self._session
        if self.algorithm not in AVERAGERS or session is None or session.world_size == 1 or not session.captures(optimizer):
            return
        if optimizer not in self._averagers:
            self._averagers[optimizer] = AVERAGERS[self.algorithm]([p for group in optimizer.param_groups for p in group["params"]])
        self._averagers[optimizer].after_step()
        self._stepped = True

    @hookimpl
    def loader_end(self) -> None:
        """An epoch is over: what is evaluated and saved now is one model."""
        self._agree()

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        if error is None:
            self._agree()

    def _agree(self) -> None:
        if self._stepped:
            self._stepped = False
            for averager in self._averagers.values():
                averager.agree()

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"gradients": [f"{self.algorithm}: {'models are averaged, not gradients' if self.algorithm in AVERAGERS else 'averaged over ranks'}"]}
