"""What a configuration would take on a GPU: its step on the estimator, its evaluation, the advice, and the search."""
