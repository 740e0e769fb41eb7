"""Detects diverged ranks at the next backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torchbus.plugin import Context, RanksDiverged

from torchbus_device import accelerators
from torchbus_strategy.backward import header
from torchbus_strategy.backward.header import DeviceHeader, Header
from torchbus_strategy.checks.constants import Constants
from torchbus_strategy.collectives import extremes
from torchbus_strategy.compat import is_divided

SEED = (
    "let a branch that skips a batch, as in `if torch.isnan(loss): continue`, decide by a number of"
    " all ranks, s.reduce(loss); seed what draws the order, as in"
    " random.Random(epoch).shuffle(batches), and what chooses the samples (random_split), and make"
    " both inside the block; fill a sampler's weights from the samples of all ranks (s.all_gather);"
    " let every rank take every batch, in evaluation as well; a loop that skips the smaller batch"
    " at the end of an epoch needs drop_last=True"
)

DRIFTED = (
    "a parameter is not the same on all ranks any more: a rank changed it by its own data or random"
    " numbers, or only some ranks loaded a checkpoint. Change it by reduced values,"
    " s.reduce(value), and redraw weights after model.eval(), where all ranks draw the same numbers"
)
NO_BACKWARD = (
    "the ranks' parameters differ, and loss.backward() was never called: gradients that are"
    " made by torch.autograd.grad and applied by hand are not averaged. Call loss.backward(), or"
    " assign them to p.grad before optimizer.step(), which averages them by samples"
)


class RankFacts(NamedTuple):
    """The position and facts of a rank."""

    backward_calls: int
    optimizer_steps: int
    position: int


class HeaderWatch(Protocol):
    """Looks at every header for what all ranks should, or should not, have in common.

    The header carries ``input_sum``.
    """

    input_sum: float

    def look(self, mean: Sequence[float], sent: Sequence[float]) -> None: ...


class HeaderCheck:
    """Compares the mean of the headers with what this rank sent.

    On a CPU it does so at once. On a GPU the host would have to wait, so it compares them one
    backward later.
    """

    def __init__(
        self,
        session: Context,
        facts: Callable[[], RankFacts],
        watch: HeaderWatch,
        constants: Constants,
        look: Callable[[list[float]], None],
    ) -> None:
        self._session = session
        self._facts = facts
        self.watch = watch
        self.constants = constants
        self._look = look
        self._may_differ = bool(session.bus.hook.parameters_may_differ(session=session))
        self._pending: tuple[Tensor, accelerators.Event] | None = None

    def take(self, reported: Header, mean: list[float]) -> None:
        """Check a header now or, on a GPU, later. Raises RanksDiverged, on all ranks.

        ``mean`` is the mean that was received. It is not used if the header is on a GPU.
        """
        if not isinstance(reported, DeviceHeader):
            return self.compare(mean, reported.slots, reported.agrees)  # type: ignore[arg-type]
        self.finish()
        there = reported.both()
        both = there.to("cpu", non_blocking=True)
        self._pending = (both, accelerators.recorded(there.device))

    def finish(self) -> None:
        """Check the last header, if it has not been checked yet."""
        if self._pending is not None:
            both, event = self._pending
            self._pending = None
            event.synchronize()
            self.compare(*both.tolist())

    def compare(self, mean: list[float], sent: list[float], agrees: bool = False) -> None:
        if not agrees:
            if not header.agrees(mean, sent):
                self._raise_diverged()
            if not header.constants_agree(mean, sent):
                self.constants.judge(int(sent[header.PROGRESS]))
        if not self._may_differ and header.drifted(mean, sent):
            raise RanksDiverged(DRIFTED)
        self.watch.look(mean, sent)
        self._look(mean)

    def _raise_diverged(self) -> None:
        reported = [
            RankFacts(*facts) for facts in self._session.all_gather_object(tuple(self._facts()))
        ]
        lines = [
            _by_rank(name, [getattr(facts, name) for facts in reported])
            for name in ("backward_calls", "optimizer_steps")
        ]
        if len({facts.position for facts in reported}) > 1:
            calls = {facts.backward_calls for facts in reported}
            at = f"at backward call {calls.pop()} " if len(calls) == 1 else ""
            lines.append(
                f"{at}the ranks do not have the same order of the data, or are not at the same"
                f" place in it ({SEED})"
            )
        facts = "; ".join(line for line in lines if line) or "their counts differ"
        raise RanksDiverged(
            "the ranks made different numbers of backward calls, or are at different places of the"
            f" loop: {facts}"
        )


def refuse_unlike(session: Context, parameters: list[Tensor], backwards: int) -> None:
    """Raise RanksDiverged, on all ranks, if the parameters differ at the end of a loop.

    All ranks call it. It finds a loop that has trained without a backward, and parameters that
    only the optimizer has known.
    """
    sums = sums_of(parameters)
    sizes, *_ = extremes([len(sums)], session.world_size)
    if _close(*sizes) and all(_close(*one) for one in extremes(sums, session.world_size)):
        return
    raise RanksDiverged(DRIFTED if backwards else NO_BACKWARD)


def sums_of(parameters: Sequence[Tensor]) -> list[float]:
    """Return the sum of each parameter, of any shape and dtype, that all ranks have whole."""
    whole = [one.detach() for one in parameters if not is_divided(one)]
    real = [torch.view_as_real(one) if one.is_complex() else one for one in whole]
    return [float(one.sum(dtype=torch.float64)) for one in real]


def _close(least: float, greatest: float) -> bool:
    return math.isclose(least, greatest, rel_tol=1e-4, abs_tol=1e-12)


def _by_rank(name: str, values: list[int]) -> str:
    if len(set(values)) == 1:
        return ""
    return f"{name.replace('_', ' ')}: " + ", ".join(
        f"{value} on rank {rank}" for rank, value in enumerate(values)
    )
