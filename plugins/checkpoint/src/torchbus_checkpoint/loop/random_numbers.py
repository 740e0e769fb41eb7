"""The random numbers of this rank: the session's streams, and the generators of a loader."""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader
from torchbus.plugin import Context

from torchbus_checkpoint.loop import generators
from torchbus_checkpoint.loop.scopes import put_generators
from torchbus_checkpoint.replay.gaps import Standing
from torchbus_checkpoint.state.plain import State, decode, encode


class RandomNumbers:
    """``alike``: the states that are put back are this rank's own."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self.alike = True

    def streams(self) -> State:
        """Return the state of the session's streams."""
        state: State = encode(self._session.random.state(), "the random state")
        return state

    def state(self, loader: DataLoader[object]) -> State:
        """Return the streams, and the generators of a loader."""
        return {"random": self.streams(), "generators": generators.read(loader)}

    def put(self, state: Mapping[str, Any], loader: DataLoader[object] | None) -> None:
        """Go back to a ``state``. Of another rank's state, take only the common streams."""
        streams = decode(state["random"])
        if self.alike:
            self._session.random.load(streams)
        else:
            self._session.random.load_common(streams, self._session.rank, self._session.world_size)
        if loader is not None:
            generators.write(loader, state["generators"])

    def put_standing(self, standing: Standing, frames: list[FrameType]) -> None:
        """Go back to the random numbers at the begin of a gap."""
        self.put(standing, None)
        put_generators(frames, standing["own"])
