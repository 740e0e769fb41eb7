"""Checks for what would hang, or would be silently wrong, under sharding.

They compare, refuse and report. They change no value.
"""
