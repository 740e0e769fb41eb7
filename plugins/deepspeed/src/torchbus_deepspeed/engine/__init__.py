"""One DeepSpeed engine: its creation, the layout of its shards, and gathering them."""
