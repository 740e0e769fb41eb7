"""How the replicas meet: by gradients, by shards of these, or by parameters after some steps."""
