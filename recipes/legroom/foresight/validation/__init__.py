"""Predictions against what was measured: published runs, allocator traces, calibration."""
