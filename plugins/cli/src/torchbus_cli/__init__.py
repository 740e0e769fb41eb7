"""The command ``torchbus``: ``run``, ``doctor``, ``options``, ``plugins`` and others."""
