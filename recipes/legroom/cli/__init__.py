"""The command line: one run, a sweep, the console, the summary, the help text, clusters."""
