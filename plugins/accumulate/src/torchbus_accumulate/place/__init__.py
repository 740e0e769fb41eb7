"""Where the loop is in its data: which batch of which window, by which schedule.

Listens and counts. Touches no gradient.
"""
