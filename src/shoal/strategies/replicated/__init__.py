"""What the strategies share in which every worker holds the whole model."""
