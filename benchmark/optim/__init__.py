"""SGD and learning-rate schedules, as values of an experiment."""
