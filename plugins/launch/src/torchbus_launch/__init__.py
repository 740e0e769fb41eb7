"""Starts or joins the ranks of a session, watches them, and ends them together.

A session uses ``launcher``. ``store`` is shared by all ranks, and ``job`` is a rank's link to the
others. ``guard``, ``hang`` and ``freeze`` watch the ranks. ``failure`` records which rank failed.
"""
