"""Studies: what the figures of one or many runs say: where time went, and what more workers cost and buy."""
