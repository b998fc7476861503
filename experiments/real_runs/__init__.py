"""Are steps on real processes as long as predicted? `python -m experiments.real_runs`."""
