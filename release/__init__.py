"""Makes a release: ``python3 make.py release 0.2.0 [--dry-run]``, or its files only: ``dists``.

``tree`` writes the version into a checkout, ``dists`` builds, ``trial`` installs what was built.
``environment`` makes what ``make.py`` runs in.
"""
