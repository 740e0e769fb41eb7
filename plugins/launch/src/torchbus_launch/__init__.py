"""Starts or joins the ranks of a session, watches them, and ends them together.

``launcher`` is what a session uses; ``store`` is shared by all ranks; ``job`` is a rank's link to
the others; ``guard``, ``hang`` and ``freeze`` watch; ``failure`` says whose error it was.
"""
