"""How long do the everyday things take? `python -m experiments.speed`."""
