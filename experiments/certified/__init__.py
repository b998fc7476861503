"""Certified search beside the grid, over problems drawn by a seed: which is faster, and whether
they agree."""
