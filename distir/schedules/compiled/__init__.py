"""Schedules made ready to run: what they count and hold, and which actions may run together."""
