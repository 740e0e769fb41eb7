"""Outputs that are computed in backward: what the loop does with them is noted, and done there.

So the schedules 1f1b and interleaved have the loop's own loss for each micro-batch.
"""
