"""How replicas average: gradients, shards of gradients, or parameters after some steps."""
