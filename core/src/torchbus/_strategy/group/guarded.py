"""Process groups that the guard can end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchbus._launch.store.listening import gloo_on_loopback
from torchbus._launch.watch.sockets import shut, sockets_opened
from torchbus._session.context import Context


@contextmanager
def guarded_groups(session: Context) -> Iterator[None]:
    """Make process groups inside: a rank that fails closes its connections, and no other one waits.

    All ranks call it. Ranks of one host connect by its loopback address.
    """
    before = sockets_opened()
    with gloo_on_loopback(session.world.one_host):
        yield
    own = sockets_opened() - before
    assert session.job is not None
    session.job.on_release(lambda: shut(own))
