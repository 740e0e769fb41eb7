"""``torchbus options`` and ``torchbus stubs``: what ``session(...)`` and ``s.`` take here."""
