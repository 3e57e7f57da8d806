"""How gradients become steps; one file per part."""
