"""Cuts models: finds their layers, assigns them to ranks, and replaces the others."""
