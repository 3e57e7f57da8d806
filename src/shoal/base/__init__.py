"""Words every room uses: errors that answer, durations with units, who am I (World), where a training lives (Run)."""
