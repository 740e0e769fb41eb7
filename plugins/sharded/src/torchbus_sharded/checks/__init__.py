"""Checks against hangs and silently wrong results under sharding.

They compare, refuse and report. They change no value.
"""
