"""The life of one session: how it begins and ends, what it captures, and what it reports.

This folder reads the frames of the user's loop. It patches nothing; ``_seams`` does.
"""
