"""Metrics from ``s.log``: accumulated on the device, reduced over steps and ranks.

There is one collective per log point. The modules here write no file.
"""
