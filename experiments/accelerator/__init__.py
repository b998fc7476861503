"""What does the GPU at hand reach? `python -m experiments.accelerator --device NAME`."""
