"""Plans of several pipeline shapes: replicas of each, micro-batches of each, on any chips. Knows numbers only."""
