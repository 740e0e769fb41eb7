"""The parameters and buffers that all ranks have in common, and those that belong to one rank."""
