"""The cases of tests/tools/torture.py."""
