"""Plugins that break training, each in one way: what ``torchbus verify`` must find.

``python verify_broken.py NAME`` verifies SCRIPT with the plugin of that name, and prints the
verdict.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torchbus.bus.base import hookimpl
from torchbus.patches.skipping import Answer

SCRIPT = Path(__file__).parent / "scripts" / "verify_broken.py"


class Broken:
    """Counts backwards and steps from 1; ``at`` is when the fault happens."""

    at = 3

    def __init__(self) -> None:
        self.backwards = self.steps = 0

    @hookimpl
    def session_start(self, session: Any) -> None:
        self.session = session
        self.begin()

    @hookimpl
    def before_backward(self, call: Any) -> None:
        self.backwards += 1
        self.before(call)

    @hookimpl
    def after_backward(self, call: Any) -> None:
        if self.backwards == self.at:
            self.gradients([one for one in self.parameters if one.grad is not None], call)

    @hookimpl
    def parameters_added(self, parameters: Any) -> None:
        self.parameters = parameters

    @hookimpl
    def after_optimizer_step(self, optimizer: Any) -> None:
        self.steps += 1
        if self.steps == self.at:
            self.stepped(optimizer)

    def begin(self) -> None: ...
    def before(self, call: Any) -> None: ...
    def gradients(self, parameters: list[Any], call: Any) -> None: ...
    def stepped(self, optimizer: Any) -> None: ...


class NotAveraged(Broken):
    """Every rank steps with the gradient of rank 0's loss."""

    def before(self, call: Any) -> None:
        if self.backwards == self.at:
            own = torch.autograd.grad(call.loss, self.parameters, retain_graph=True)
            self.own = self.session.user.all_gather_object(own)[0]

    def gradients(self, parameters: list[Any], call: Any) -> None:
        for one, own in zip(parameters, self.own, strict=True):
            one.grad.copy_(own)


class AveragedTwice(Broken):
    def gradients(self, parameters: list[Any], call: Any) -> None:
        for one in parameters:
            one.grad /= self.session.world_size


class OneTensorLost(Broken):
    def gradients(self, parameters: list[Any], call: Any) -> None:
        parameters[2].grad.zero_()


class RaggedWeight(Broken):
    """All ranks weigh the same, however many samples they have; the shares are uneven in backward
    7.
    """

    def before(self, call: Any) -> None:
        call.weight = 1.0


class Rounded(Broken):
    def gradients(self, parameters: list[Any], call: Any) -> None:
        parameters[0].grad.copy_(parameters[0].grad.half())


class StaleBuffer(Broken):
    at = 5

    def gradients(self, parameters: list[Any], call: Any) -> None:
        (model,) = self.session.user.adopt(*sys.modules["__main__"].__dict__["model"].modules())[:1]
        model.calls -= 1


class RepeatedSamples(Broken):
    """Rank 1 draws its second share again instead of its third."""

    def begin(self) -> None:
        drawn: list[Any] = []

        def make(original: Any) -> Any:
            def draw(iterator: Any) -> Any:
                drawn.append(original(iterator))
                return drawn[1] if len(drawn) == 3 and self.session.rank == 1 else drawn[-1]

            return draw

        self.session.replace(_BaseDataLoaderIter, "_next_index", make)


class SchedulerTwice(Broken):
    def begin(self) -> None:
        def make(original: Any) -> Any:
            def step(scheduler: Any, *args: Any) -> None:
                original(scheduler, *args)
                if scheduler.last_epoch > 0 and not self.busy:
                    self.busy = True
                    original(scheduler, *args)
                    self.busy = False

            return step

        self.busy = False
        self.session.replace(LRScheduler, "step", make)


class StepLeftOut(Broken):
    at = 9
    calls = 0

    @hookimpl
    def step_called(self, optimizer: Any) -> Any:
        self.calls += 1
        return Answer() if self.calls == self.at else None


class NotCleared(Broken):
    at = 4
    calls = 0

    @hookimpl
    def before_zero_grad(self, optimizer: Any) -> Any:
        self.calls += 1
        return self.calls == self.at or None


class MomentumLost(Broken):
    at = 6

    def stepped(self, optimizer: Any) -> None:
        optimizer.state.clear()


class OneRankAstray(Broken):
    def stepped(self, optimizer: Any) -> None:
        if self.session.rank == 1:
            with torch.no_grad():
                optimizer.param_groups[0]["params"][3] += 1e-9


class SavedByRank1(Broken):
    @hookimpl(tryfirst=True)
    def save_file(self, path: str, write: Any) -> bool:
        if self.session.rank == 1:
            write(path + ".1")
        return True


class TornFile(Broken):
    @hookimpl(tryfirst=True)
    def save_file(self, path: str, write: Any) -> bool:
        if self.session.rank == 0:
            write(path)
            with open(path, "r+b") as file:
                file.truncate(os.path.getsize(path) // 2)
        return True


class PartOfEvaluation(Broken):
    """Every rank evaluates half of each batch."""

    @hookimpl
    def batch_ready(self, batch: Any) -> Any:
        return None if torch.is_grad_enabled() else [one[: len(one) // 2] for one in batch]


ALL = {cls.__name__: cls for cls in Broken.__subclasses__()}


def main(name: str) -> None:
    from torchbus_verify import report
    from torchbus_verify.runs.inside import RunRequest
    from torchbus_verify.verifying import verify_request

    shutil.copyfile(SCRIPT, "train.py")
    options = {"strategy": "ddp", "devices": 2, "batch": "global"}
    plugins = (ALL[name](),) if name in ALL else ()
    print(
        report.dumps(
            verify_request(
                RunRequest(("train.py",), plugins=plugins, options=options, folder=Path.cwd())
            )
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
