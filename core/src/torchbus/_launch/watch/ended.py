"""What a rank had done when it reached its end: evidence for the ranks that wait for it.

A long wait is no evidence.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from torchbus._launch.watch.place import Place


class Ended(NamedTuple):
    """The counts of a rank at its end.

    ``collectives``: those of the main process group; None if its backend does not count them.
    """

    rank: int
    backwards: int
    collectives: int | None

    def written(self) -> str:
        return json.dumps(self)

    @classmethod
    def read(cls, text: str) -> Ended:
        return cls(*json.loads(text))

    def is_no_more_than(self, other: Ended) -> bool:
        """Return whether a rank that waits in vain for the other waits in vain for this one."""
        return self.backwards <= other.backwards and (
            other.collectives is None
            or (self.collectives is not None and self.collectives <= other.collectives)
        )

    def never_comes_to(self, place: Place, begun: int | None) -> bool:
        """Return whether a rank waits in a synchronisation that this rank has never begun.

        The other rank waits at ``place`` and has ``begun`` so many collectives. Every rank takes
        part in each backward and in each collective of the main group. It may have no part in a
        collective of another group. A rank that waits in backward 12 may have counted it already.
        """
        match place.waits_in.split():
            case ["backward", number, *_] if int(number) > self.backwards:
                return True
        return begun is not None and self.collectives is not None and begun > self.collectives
