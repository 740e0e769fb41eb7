"""``balance="time"``: a model is divided at its first call, by the time of its layers in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from torch.nn import Module
from torch.utils.hooks import RemovableHandle
from torchbus.plugin import Context, Unsupported

from torchbus_pipeline.meeting import Meeting
from torchbus_pipeline.model.layers import Layers
from torchbus_pipeline.model.timing import seconds_of

MARK = "torchbus_pipeline_undivided"
COPIED = (
    "a model is copied or pickled before its first call, under strategy='pipeline' with"
    " balance='time': it is divided at that call, and the copy would not be. Copy it after the"
    " first call, or use balance='parameters'"
)
Told = tuple[list[float] | None, str]
Divide = Callable[[list[float] | None, str], None]
"""Gets the seconds of each layer, or None and why there are none."""


class FirstCalls:
    """Waits for the first calls of models. Rank 0 measures, and all ranks get its times."""

    def __init__(self, session: Context, meeting: Meeting) -> None:
        self._session, self._meeting = session, meeting

    def wait_for(self, model: Module, found: Layers, divide: Divide) -> None:
        """Call ``divide`` at the model's first call, on all ranks."""
        name = type(model).__name__

        def called(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            forget()
            self._meeting.meet(f"the first call of {name}")
            divide(*self._measured(module, found, args, kwargs))

        handle = model.register_forward_pre_hook(called, prepend=True, with_kwargs=True)
        forget = _marked(model, handle)
        self._session.on_close.callback(forget)

    def _measured(
        self, model: Module, found: Layers, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Told:
        told: Told = (None, "")
        if self._session.is_main:
            drawn = self._session.random.state()
            try:
                told = seconds_of(model, found, args, kwargs), ""
            except Exception as error:  # whatever a copy of the model, or its layers, may raise
                told = None, f"{type(error).__name__}: {error}"
            finally:
                self._session.random.load(drawn)
        agreed: Told = self._meeting.told_by_first(told)
        return agreed


def is_waiting(model: Module) -> bool:
    """Whether a model is still to be divided."""
    return MARK in vars(model)


class _Undivided:
    """Is in a model that waits for its first call, and refuses to be copied with it."""

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise Unsupported(COPIED)

    def __reduce__(self) -> NoReturn:
        raise Unsupported(COPIED)


def _marked(model: Module, handle: RemovableHandle) -> Callable[[], None]:
    """Mark a model. Returns what removes the mark and the hook."""
    vars(model)[MARK] = _Undivided()

    def forget() -> None:
        handle.remove()
        vars(model).pop(MARK, None)

    return forget
