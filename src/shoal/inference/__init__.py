"""A trained model at work: on any images, in Python, or in other programs' formats."""
