"""Number formats of the forward and backward pass; one file per part."""
