"""The process group: opened for the session, closed with it."""
