"""How fast a recipe would train on workers that are not there: a cost model, calibrated by a probe or by a Study."""
