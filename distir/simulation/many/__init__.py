"""Many strategies simulated at once, as columns of numbers."""
