"""Which rung and config a problem gets: the tuning database, the cost model, the choice and its explanation."""
