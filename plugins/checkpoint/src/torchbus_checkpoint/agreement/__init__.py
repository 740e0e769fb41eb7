"""What ranks agree on without a collective: when a checkpoint is due, which one, and whether it succeeded.

Speaks through the store of the job, in JSON.
"""
