"""The learning rate over images seen; one file per part."""
