"""One step's mathematics: task, optimizer, schedule, precision, norms, meters, and the gang that shares it."""
