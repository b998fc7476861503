"""The original DistIR, its outputs and its measurements, beside ours."""
