"""How near the simulator comes to published measurements, and the constants that it ships with."""
