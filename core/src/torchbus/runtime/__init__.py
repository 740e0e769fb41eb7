"""A running session: its context, services, explanation and built-in plugins."""
