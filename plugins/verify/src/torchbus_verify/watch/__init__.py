"""``verify_every``: at intervals, rank 0 recomputes the gradients of all ranks, and compares."""
