"""The training itself: the step, the two loops around it, evaluation, the optimizer."""
