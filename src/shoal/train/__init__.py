"""One run: when things happen, not what they compute."""
