"""Implements ``gradient_algorithm=`` by a communication hook of DDP, or by averages of models."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torchbus.plugin import Context, UsageError, hookimpl

from torchbus_compress import codecs
from torchbus_compress.averaging import AVERAGERS, LocalModels
from torchbus_compress.codecs import Bfloat16, Bytes

if TYPE_CHECKING:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState


AlgorithmName = Literal[
    "allreduce",
    "fp16",
    "bf16",
    "powersgd",
    "bytegrad",
    "local_sgd",
    "decentralized",
    "low_precision_decentralized",
    "async",
    "diloco",
]
ALGORITHMS: tuple[str, ...] = get_args(AlgorithmName)
WITHOUT_STRATEGY = ALGORITHMS[:-1]
"""The algorithms that this plugin runs, under ddp and the strategies that are built on it."""


class CompressState(TypedDict):
    """The checkpoint state. ``who`` is the rank that wrote it, and the number of ranks."""

    algorithm: str
    who: list[int]
    own: Any


class SameBuckets(DistributedDataParallel):
    """DDP whose buckets stay the same from the first backward on, also in a resumed run.

    The result of some codecs depends on the whole bucket.
    """

    keeps_buckets = True


class Compress:
    """Averages gradients over ranks in fewer bytes, or averages models instead.

    It needs the strategy ddp, or one that is built on it. ft runs "local_sgd" and "diloco" itself.

    Args:
        gradient_algorithm: "allreduce" sends gradients as they are. "fp16", "bf16", "bytegrad" (8
            bits) and "powersgd" (low rank) send fewer bytes. "local_sgd", "decentralized",
            "low_precision_decentralized" and "async" average models, not gradients. "diloco"
            averages changes of models, under ft only.

    Sources: see each algorithm; PowerSGD: Vogels et al., NeurIPS 2019.

    Raises:
        UsageError: an option has another type or value.
    """

    def __init__(self, *, gradient_algorithm: AlgorithmName = "allreduce") -> None:
        if str(gradient_algorithm) == "qadam":
            raise UsageError(
                "gradient_algorithm='qadam' is an optimizer of Bagua's that sends Adam's momentum,"
                " which torch's Adam does not allow: use 'bytegrad', which sends the same number"
                " of bytes"
            )
        if gradient_algorithm not in ALGORITHMS:
            raise UsageError(
                f"gradient_algorithm={gradient_algorithm!r} is unknown: use one of"
                f" {', '.join(map(repr, ALGORITHMS))}"
            )
        if gradient_algorithm == "powersgd" and importlib.util.find_spec("numpy") is None:
            raise UsageError(
                "gradient_algorithm='powersgd' needs numpy, which torch's hook imports: pip install"
                " numpy"
            )
        self.algorithm = gradient_algorithm
        self._session: Context | None = None
        self._models = (
            LocalModels(AVERAGERS[gradient_algorithm]) if gradient_algorithm in AVERAGERS else None
        )
        self._memory = HookStates()

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session
        plugins = [one for _, one in session.bus.plugins()]
        if any(self.algorithm in getattr(one, "gradient_algorithms", ()) for one in plugins):
            self._models = None  # the strategy runs the algorithm
            return
        if self.algorithm == "diloco":
            raise UsageError(
                "gradient_algorithm='diloco' is for replicas with slow links between them: use"
                " strategy='ft' (torchbus-ft), or 'local_sgd'"
            )
        if self.algorithm != "allreduce" and "configure_ddp" not in session.bus.events():
            raise UsageError(
                f"gradient_algorithm={self.algorithm!r} changes what torch's DDP reducer sends,"
                " which this strategy does not use: use strategy='ddp' (under fsdp"
                " mixed_precision='bf16' sends parameters in 16 bits)"
            )
        if self._models is not None:
            session.on_close.callback(self._models.close)

    @hookimpl(optionalhook=True)
    def configure_ddp(
        self, session: Context, module: nn.Module, options: dict[str, Any]
    ) -> DistributedDataParallel | None:
        if self.algorithm == "allreduce":
            return None
        ddp = SameBuckets(module, **options)
        exact = list(module.parameters())[-1]
        hook, state = self._hook()
        if state is not None:
            self._memory.add(module, state)
        ddp.register_comm_hook(state, codecs.with_exact(exact, hook))
        return ddp

    def _hook(self) -> tuple[codecs.Hook, PowerSGDState | None]:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        if self.algorithm in AVERAGERS:
            return codecs.local, None
        if self.algorithm == "fp16":
            return default_hooks.fp16_compress_hook, None
        if self.algorithm == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=2, start_powerSGD_iter=10
            )
            return powerSGD_hook.powerSGD_hook, state
        return codecs.encoded(Bfloat16() if self.algorithm == "bf16" else Bytes()), None

    @hookimpl(optionalhook=True)
    def parameters_may_differ(self) -> bool | None:
        """True: parameters differ while ranks step independently between two averages."""
        return True if self.algorithm in AVERAGERS else None

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if self._takes_part(optimizer) and self._models is not None and optimizer is not None:
            self._models.add(optimizer)

    @hookimpl(trylast=True)
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        if self._takes_part(optimizer) and self._models is not None:
            self._models.after_step(optimizer)

    def _takes_part(self, optimizer: Optimizer | None) -> bool:
        session = self._session
        return (
            optimizer is not None
            and session is not None
            and session.world_size > 1
            and session.captures(optimizer)
        )

    @hookimpl
    def loader_end(self) -> None:
        """Average the models at the end of a pass, so the loop evaluates and saves the mean."""
        self._agree()

    @hookimpl
    def session_end(self, error: BaseException | None) -> None:
        if error is None:
            self._agree()

    def _agree(self) -> None:
        if self._models is not None:
            self._models.agree()

    # State ---------------------------------------------------------------------------------------

    @property
    def _who(self) -> list[int]:
        assert self._session is not None
        return [self._session.rank, self._session.world_size]

    def state_dict(self) -> CompressState:
        """Return this rank's state, for a checkpoint.

        It has errors that are not sent yet, or this rank's model between two averages.
        """
        mine = self._memory.state_dict() if self._models is None else self._models.state_dict()
        return {"algorithm": self.algorithm, "who": self._who, "own": mine}

    def load_state_dict(self, state: CompressState) -> None:
        """Load the state of the same algorithm; ignore one of another.

        If another rank, or another number of ranks, wrote it, load only what the ranks share.
        """
        if state.get("algorithm") != self.algorithm:
            return
        if self._models is None:
            self._memory.load_state_dict(state["own"], state["who"] == self._who)
        elif state["who"] == self._who:
            self._models.load_state_dict(state["own"])

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {
            "gradients": [
                f"{self.algorithm}: models are averaged, not gradients"
                if self.algorithm in AVERAGERS
                else f"{self.algorithm}: averaged over ranks"
            ]
        }


class SavedHook(TypedDict):
    """The state of torch's communication hook. ``random`` is the state of its generator."""

    steps: int
    random: Any
    errors: dict[int, Tensor]
    ps: dict[int, Tensor]
    qs: dict[int, Tensor]


@dataclass
class _Known:
    parameters: frozenset[int]
    state: PowerSGDState


class HookStates:
    """The states of torch's PowerSGD hook, one for each set of parameters in one DDP module.

    A set of the same shapes gets the saved state. Errors belong to one rank, and are loaded only by
    that rank.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._loaded: dict[str, SavedHook] = {}

    def add(self, module: nn.Module, state: PowerSGDState) -> None:
        """Store a state for the module's parameters, and load a saved one of the same shapes.

        The last parameter, which holds the ranks' metadata, does not count.
        """
        parameters = list(module.parameters())[:-1]
        identity = frozenset(map(id, parameters))
        key = base = ", ".join("x".join(map(str, one.shape)) for one in parameters)
        number = 1
        while key in self._known and self._known[key].parameters != identity:
            number += 1
            key = f"{base} #{number}"
        self._known[key] = _Known(identity, state)
        if key in self._loaded:
            _fill(state, self._loaded.pop(key))

    def state_dict(self) -> dict[str, SavedHook]:
        return self._loaded | {key: _read(known.state) for key, known in self._known.items()}

    def load_state_dict(self, saved: dict[str, SavedHook], is_local: bool) -> None:
        """Load saved states. ``is_local`` says whether this rank has written them."""
        self._loaded = {
            key: one if is_local else {**one, "errors": {}} for key, one in saved.items()
        }
        for key in [key for key in self._loaded if key in self._known]:
            _fill(self._known[key].state, self._loaded.pop(key))


def _read(state: PowerSGDState) -> SavedHook:
    return {
        "steps": state.iter,
        "random": state.rng.get_state(),
        "errors": dict(state.error_dict),
        "ps": dict(state.p_memory_dict),
        "qs": dict(state.q_memory_dict),
    }


MERSENNE_NUMBERS = 624


def _fill(state: PowerSGDState, saved: SavedHook) -> None:
    """Load a saved state. torch looks values up by a bucket's number, and makes missing ones.

    Raises ValueError if the generator's state is invalid.
    """
    state.iter = saved["steps"]
    if type(saved["random"]) is not tuple or not 0 <= saved["random"][2] <= MERSENNE_NUMBERS:
        raise ValueError("a generator behind its last number")  # NumPy would read memory there
    state.rng.set_state(saved["random"])
    state.error_dict = dict(saved["errors"])
    state.p_memory_dict, state.q_memory_dict = dict(saved["ps"]), dict(saved["qs"])
