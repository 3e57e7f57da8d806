"""Images in: sources, the order of samples, augmentation, batches."""
