"""DeepSpeed's own optimizers, fused or for CPUs, which step in place of the loop's."""
