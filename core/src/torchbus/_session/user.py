"""What plugins see of the object that the loop's author holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchbus._session.installed import MoreVerbs
    from torchbus._session.verbs import KnownVerbs

    class Verbs(KnownVerbs, MoreVerbs): ...

else:
    Verbs = object


class User(Verbs):
    """It has the verbs of all plugins."""

    def explain(self) -> str:
        """Return one screen: what the session found, what it does to each object, and why."""
        raise NotImplementedError
