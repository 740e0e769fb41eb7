"""The command line: ``torchbus COMMAND ...``."""
