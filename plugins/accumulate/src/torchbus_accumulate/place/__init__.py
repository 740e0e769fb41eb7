"""Where the loop is in its data: which batch of which window, by which schedule.

The modules here count. They touch no gradient.
"""
