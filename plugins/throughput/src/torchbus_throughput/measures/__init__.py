"""What a window is made of: samples, tokens, operations, time and power."""
