"""Pages that show a run, an estimate or a sweep in a browser, from the disk and without a network."""
