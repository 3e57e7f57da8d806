"""What to train, as plain data. Nothing here imports torch."""
