"""What a rank that has come to its end has done: evidence for those that wait for it. That they have waited long is none."""

from __future__ import annotations

import json
from typing import NamedTuple

from torchbus._launch.watch.place import Place

SOME_ENDED = "some ended"


class Ended(NamedTuple):
    """``collectives``: of the main process group, None where its backend does not count them."""

    backwards: int
    collectives: int | None

    def written(self) -> str:
        return json.dumps(self)

    @classmethod
    def read(cls, text: bytes) -> Ended:
        return cls(*json.loads(text))

    def never_comes_to(self, place: Place, begun: int | None) -> bool:
        """Whether another rank, which waits at ``place`` and has ``begun`` so many collectives, is in one that this rank has never begun. All ranks
        make each backward, and each collective of the main group. In one of another group this rank may have no part."""
        if place.waits_in.startswith("backward ") and place.backwards >= self.backwards:
            return True
        return begun is not None and self.collectives is not None and begun > self.collectives
