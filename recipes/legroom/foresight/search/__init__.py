"""The search of `fit`, in the order in which it runs.

request.py: what the command line asks for. space.py: which configurations there are, and which are not tried.
plan.py: from a request to its search space, or to the problems.
extrapolation.py: a deep model's step from two shallow ones. candidates.py: all configurations with such figures.
runner.py: the estimates, the most promising first. pool.py: the worker processes. present.py: what is printed.
"""
