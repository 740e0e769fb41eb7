"""The parameters and buffers that a session trains."""
