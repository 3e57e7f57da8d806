"""Where a job runs: what to start (Job, Plan), who starts it (Launcher), who watches over it (Agent). No torch."""
