"""Lazy outputs, computed in backward: operations of the loop on them are recorded and replayed.

So the schedules 1f1b and interleaved have the loop's own loss for each micro-batch.
"""
