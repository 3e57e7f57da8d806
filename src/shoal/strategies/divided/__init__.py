"""What strategies have in common under which each worker holds a part of the model."""
