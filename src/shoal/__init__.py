"""Shoal trains image classifiers on one machine or on many: the recipe decides the trajectory, the cluster how fast."""

__version__ = "0.1.0"
