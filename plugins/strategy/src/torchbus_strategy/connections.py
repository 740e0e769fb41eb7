"""Makes process groups, and proves that each connection leads to a rank of this job.

gloo gives a connection to the rank whose number comes first through it, and these numbers are
small: any program that reaches its port while a group is made can take a rank's place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torchbus.plugin import Context, LaunchError

from torchbus_launch.broadcast_log import shut, sockets_opened
from torchbus_launch.listening import gloo_on_loopback
from torchbus_launch.store import StoreBarrier, shared_store

ATTEMPTS_S = (2.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 8.0, 8.0, 30.0, 60.0)
"""The time limits of the proofs. A proof takes milliseconds, unless a stranger is connected. A
stranger that never pauses is connected in a quarter of the attempts.
"""
MADE_WITHIN_S = 60.0  # on a machine that is busy


@contextmanager
def sockets_of_groups(session: Context) -> Iterator[set[int]]:
    """Yield a set. After the block it has the descriptors of the sockets of groups made there.

    Ranks of one host connect by its loopback address.
    """
    before, sockets = sockets_opened(), set[int]()
    with gloo_on_loopback(session.world.one_host):
        yield sockets
    sockets |= sockets_opened() - before


def make_proven(
    session: Context, backend: str, word: str, make: Callable[[int], dist.ProcessGroup]
) -> dist.ProcessGroup:
    """Make a group of all ranks. All of them call it; a rank that fails closes its connections.

    ``make`` makes the group, given the number of the attempt. A group of gloo is made again if
    another program is connected in the place of a rank. ``word`` must be unique in the session.
    Raises LaunchError if the group can't be made, or a stranger is connected at each attempt.
    """
    assert session.job is not None
    for attempt, within_s in enumerate(ATTEMPTS_S):
        try:
            with sockets_of_groups(session) as sockets:
                group = make(attempt)
        except (RuntimeError, ValueError, dist.DistError) as error:
            raise _failed(session, backend, error) from error
        if backend != "gloo" or _all_proven(session, group, f"{word} {attempt}", within_s):
            session.job.on_release(partial(shut, sockets))
            return group
        _wait_until_made(session, f"{word} {attempt}")
        shut(sockets)  # ends what waits for the stranger
        dist.destroy_process_group(group)
    raise LaunchError(
        f"rank {session.rank}: another program connects to gloo's ports in the place of a rank, at"
        f" each of {len(ATTEMPTS_S)} attempts. End it, or name in GLOO_SOCKET_IFNAME a network that"
        " only this job's hosts reach"
    )


def _failed(session: Context, backend: str, error: Exception) -> LaunchError:
    return LaunchError(
        f"rank {session.rank}: the {backend} process group could not be made. Run"
        " `torchbus doctor`, or name the network that connects the hosts in"
        f" {backend.upper()}_SOCKET_IFNAME. {backend} says: {error}"
    )


def _all_proven(session: Context, group: dist.ProcessGroup, word: str, within_s: float) -> bool:
    """Return whether every rank has received what only the others can send; all ranks agree."""
    assert session.job is not None
    store = shared_store(session.world)
    barrier = StoreBarrier(store, f"proven {word}", session.rank, session.world_size)
    unproven = f"unproven {word}"
    if _receives_proofs(session, group, word, within_s):
        barrier.say()
    else:
        store.set(unproven, "")
    session.job.wait_until(lambda _: barrier.is_complete() or store.check([unproven]), math.inf)
    return barrier.is_complete()


def _wait_until_made(session: Context, word: str) -> None:
    """Wait until every rank has made its group, so that none gets gloo's error while it does.

    The wait has a limit, because a stranger may hold up a rank.
    """
    assert session.job is not None
    store = shared_store(session.world)
    barrier = StoreBarrier(store, f"made {word}", session.rank, session.world_size)
    barrier.say()
    session.job.wait_until(lambda _: barrier.is_complete(), MADE_WITHIN_S)


def _receives_proofs(
    session: Context, group: dist.ProcessGroup, word: str, within_s: float
) -> bool:
    def proof(sender: int, receiver: int) -> list[int]:
        return [*shared_store(session.world).secret(f"{word}: {sender} to {receiver}")]

    rank, ranks = session.rank, range(session.world_size)
    sent = torch.tensor([proof(rank, other) for other in ranks], dtype=torch.uint8)
    expected = torch.tensor([proof(other, rank) for other in ranks], dtype=torch.uint8)
    received = torch.empty_like(expected)
    options = dist.AllToAllOptions()
    # gloo's thread, which the group joins at its end; it closes connections that others may need
    options.timeout = timedelta(seconds=within_s + MADE_WITHIN_S)
    try:
        work = group.alltoall_base(received, sent, [], [], options)
        work.wait(timedelta(seconds=within_s))
    except RuntimeError:
        return False
    return torch.equal(received, expected)
