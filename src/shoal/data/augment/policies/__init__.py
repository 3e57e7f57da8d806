"""What is done to images, one operation after another; one file per policy."""
