"""Runs, as the local logger has left them in their folders."""
