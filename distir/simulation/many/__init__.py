"""Simulates many strategies at once, as columns of numbers."""
