"""Axis lists that nobody wrote down: how soon a search finds them, and what they gain."""
