"""How rank 0 waits for the ranks that it started, and ends those that stay."""

from __future__ import annotations

import sys

from torchbus._launch.start.children import Child, end, wait_for
from torchbus._launch.watch.guard import DELIVER_AFTER_S, FORCED, KILL_AFTER_S

# its own guard ends it before, and says where it is
CHILD_GRACE_S = DELIVER_AFTER_S + KILL_AFTER_S + 3.0
ATEXIT_GRACE_S = 30.0  # after a success, a rank may have work to do in its atexit handlers


def end_children(children: list[Child], in_peace: bool) -> None:
    """Wait for the children, end those that stay, and print what their guards wrote about it."""
    late = wait_for(children, CHILD_GRACE_S)
    if late and in_peace:
        ranks = ", ".join(str(child.rank) for child in late)
        print(
            f"torchbus: waiting up to {ATEXIT_GRACE_S:.0f} s for rank {ranks}, which still runs"
            " after the block",
            file=sys.__stderr__,
        )
        wait_for(late, ATEXIT_GRACE_S)
    for child in end(late, 0.0):
        print(
            f"torchbus: rank {child.rank} did not end by itself after the block and"
            f" {child.words()}",
            file=sys.__stderr__,
        )
    for child in children:
        told = child.last_errors()
        start = told.find(f"torchbus: rank {child.rank} {FORCED}")
        if start >= 0:
            print(told[start:].rstrip(), file=sys.__stderr__)
        child.close()
