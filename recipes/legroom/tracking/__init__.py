"""Trackers: where a run's numbers go besides its folder."""
