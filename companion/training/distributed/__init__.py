"""Training on several processes: data parallel, sharded, and experts spread over processes."""
