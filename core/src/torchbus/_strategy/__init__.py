"""What every strategy does alike: ranks, process group, equal models, counted losses, checks.

``strategy`` is the base class. ``gradients`` runs each backward. ``reduction`` says how gradients
meet. The folders hold the parts, which ``parts`` shows to plugins. Nothing here names one engine.
"""
