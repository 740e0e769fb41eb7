"""The bus: plugins, their discovery and selection, options and verbs."""
