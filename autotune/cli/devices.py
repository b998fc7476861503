"""`autotune devices`."""

from __future__ import annotations

import argparse

from autotune.cli.listing import configure, show

__all__ = ["SUMMARY", "configure", "execute"]

SUMMARY = "List the devices that come with distir: GPUs and other accelerators."


def execute(arguments: argparse.Namespace) -> int:
    """Prints the list."""
    from distir.cost import device_names, load_device
    from distir.units import format_bytes, format_bytes_per_second, format_flops_per_second

    def summary(name: str) -> str:
        device = load_device(name)
        dtype = "bf16" if device.supports("bf16") else device.runs_as("fp16")
        memory = format_bytes(device.memory_bytes)
        bandwidth = format_bytes_per_second(device.memory_bandwidth_bytes_per_second)
        return f"{memory}, {bandwidth}, {format_flops_per_second(device.peak(dtype))} in {dtype}"

    return show(arguments, ((name, summary(name)) for name in device_names()))
