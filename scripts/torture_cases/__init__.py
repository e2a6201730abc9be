"""The cases of scripts/torture.py."""
