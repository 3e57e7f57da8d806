"""How a batch becomes a loss; one file per part."""
