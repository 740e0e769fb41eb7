"""The life of one session: how it begins and ends, what it captures, and what it says of itself.

Reads the frames of the user's loop. Patches nothing: that is what ``_seams`` is for.
"""
