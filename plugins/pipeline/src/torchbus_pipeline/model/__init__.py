"""Models: where their layers are, which rank has which of them, and what replaces the others."""
