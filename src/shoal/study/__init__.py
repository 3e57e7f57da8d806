"""Studies: the same training spread in several ways, compared: what more workers cost and buy."""
