"""NumPy execution: what a program means, and whether a plan keeps to it."""
