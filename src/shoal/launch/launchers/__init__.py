"""The launchers: one file each."""
