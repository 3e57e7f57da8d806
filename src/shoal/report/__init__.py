"""What people look at: sinks for live events, tables and plots of a finished or running training."""
