"""Patches of torch that are active during a session; each emits a fixed set of events."""
