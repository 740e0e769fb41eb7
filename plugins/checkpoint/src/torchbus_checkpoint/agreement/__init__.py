"""Agreement between ranks without a collective: when a checkpoint is due, and which one to use.

The ranks exchange JSON through the store of the job.
"""
