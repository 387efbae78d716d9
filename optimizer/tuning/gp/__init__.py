"""Search by Gaussian processes: one for the objective, one for each limit, one for whether the engine survives."""
