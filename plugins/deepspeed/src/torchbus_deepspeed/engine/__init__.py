"""One DeepSpeed engine: how it is made, where its parts lie, and how they become whole."""
