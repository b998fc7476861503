"""Evaluated strategies as tables in files."""
