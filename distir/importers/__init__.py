"""Readers of other people's model formats."""
