"""``model.state_dict()`` is whole on all ranks, of models and of their copies."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.nn import Module
from torchbus import objects
from torchbus.plugin import Context

from torchbus_pipeline._compat import buffers, parameters
from torchbus_pipeline.meeting import Meeting
from torchbus_pipeline.model import elsewhere
from torchbus_pipeline.model.cut import Cut
from torchbus_pipeline.model.elsewhere import Elsewhere
from torchbus_pipeline.model.marks import first_mark, mark_of
from torchbus_pipeline.team import Team


class Gather:
    """A hook that lets a layer's place send its values to the others. All ranks call it.

    Copies of a model have it too.
    """

    def __init__(self, session: Context, team: Team) -> None:
        self._session, self._team = session, team

    def __call__(self, module: Module, state: dict[str, object], prefix: str, _: object) -> None:
        mark = mark_of(module)
        if mark is None or not self._session.is_inside:
            return
        for name in [*parameters(module), *buffers(module)]:
            held = state.get(prefix + name)
            if isinstance(held, Tensor):
                state[prefix + name] = _from_place(self._team, held, mark.place)

    def __deepcopy__(self, memo: object) -> Gather:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        elsewhere.refuse_pickling("each rank has only some layers")


class Meet:
    """A hook that compares where the ranks are, before they gather a model."""

    def __init__(self, session: Context, meeting: Meeting) -> None:
        self._session, self._meeting = session, meeting

    def __call__(self, module: Module, prefix: str, keep_vars: bool) -> None:
        if not prefix and self._session.is_inside:
            self._meeting.meet_in_pipeline(f"the state_dict of {type(module).__name__}")

    def __deepcopy__(self, memo: object) -> Meet:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        elsewhere.refuse_pickling("each rank has only some layers")


class WholeModules:
    """Makes the states of models whole, of copies too, and at the end the models themselves.

    Checkpoints get whole states: a part of a pipeline's model is nothing that others can load.
    """

    def __init__(self, session: Context, team: Team, meeting: Meeting) -> None:
        self._session, self._team = session, team
        self._gather, self._meet = Gather(session, team), Meet(session, meeting)

    def add(self, cut: Cut) -> None:
        """Let a model's ``state_dict()`` be whole."""
        model, stack = cut.model(), self._session.on_close
        for module in model.modules() if model is not None else ():
            stack.callback(module.register_state_dict_pre_hook(self._meet).remove)
            stack.callback(module.register_state_dict_post_hook(self._gather).remove)

    def make_whole(self) -> None:
        """Give all ranks all values, of models and of their copies. All ranks call it."""
        found = [(first_mark(model), model) for model in objects.alive(Module)]
        marked = [(number, model) for number, model in found if number is not None]
        roots = objects.outermost(model for _, model in marked)
        number_of = {id(model): number for number, model in marked}
        for model in sorted(roots, key=lambda one: number_of[id(one)]):
            for module in model.modules():
                mark = mark_of(module)
                if mark is not None:
                    self._fill(module, mark.place)

    def _fill(self, module: Module, place: int) -> None:
        for held in [*parameters(module).values(), *buffers(module).values()]:
            if isinstance(held, Elsewhere):
                elsewhere.fill(held)
            if held is not None:
                held.data = self._team.spread(held.data.contiguous(), place)


def _from_place(team: Team, held: Tensor, place: int) -> Tensor:
    """The values of one place. The tensor that has them stays the same."""
    if team.place == place:
        if held.numel():
            team.spread(held.detach().contiguous(), place)
        return held
    made = torch.empty(held.shape, dtype=held.dtype, device=held.device)
    whole = team.spread(made, place) if held.numel() else made
    return nn.Parameter(whole, held.requires_grad) if isinstance(held, nn.Parameter) else whole
