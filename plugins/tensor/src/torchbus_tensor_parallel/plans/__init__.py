"""Which modules are divided, and how. This folder knows modules, and no ranks."""
