"""torchbus-device: finds a machine's devices, and moves batches and models to them."""
