"""`autotune profile`."""

from __future__ import annotations

import argparse
from typing import Any

from autotune.cli.options import add_where_option, positive, seconds
from autotune.cli.output import Output, add_json_option, note
from distir.errors import DistirError, shown
from distir.files import user_path, write_text
from distir.limits import MOST_DEVICES

SUMMARY = (
    "Time ops, steps and messages on this machine, and write the device, cluster and software "
    "stack that let the simulator predict it (needs PyTorch)."
)

PRECISIONS = {"numpy": "fp32", "cpu": "fp32", "cuda": "bf16"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    parser.add_argument(
        "--to",
        default="profile",
        metavar="DIR",
        help="folder to write device.toml, cluster.toml and stack.toml (default: profile)",
    )
    parser.add_argument(
        "--name", default="this-machine", help="name of the cluster (default: this-machine)"
    )
    parser.add_argument(
        "--devices",
        type=positive,
        metavar="N",
        help="devices of the cluster (default: the cores, or the GPUs)",
    )
    parser.add_argument(
        "--products",
        action="store_true",
        help="also write products.toml, the times of matrix products by size, which stack.toml "
        "names",
    )
    parser.add_argument(
        "--deadline",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="end the processes after this long, and say which waits for which",
    )
    add_where_option(parser, "cpu", "in fp32, or bf16 on GPUs")
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Profiles, writes, reports, and returns the exit status."""
    from autotune.distributed.backend import load_torch

    output = Output(arguments)
    with output.working():
        load_torch()  # whoever lacks it is to know at once
        folder = user_path(arguments.to)
        if not arguments.name.strip():
            raise DistirError("--name is empty; expected a name for the cluster")
        if (arguments.devices or 1) > MOST_DEVICES:
            raise DistirError(
                f"--devices {shown(arguments.devices)}; expected at most {MOST_DEVICES:,}"
            )
        if folder.exists() and not folder.is_dir():
            raise DistirError(f"{folder} is a file; expected a folder for --to")
        from autotune.distributed.fitting import (
            cluster_text,
            device_text,
            fitted_profile,
            measured_products,
            stack_text,
        )
        from autotune.distributed.profiling import (
            described,
            devices_here,
            memory_bytes,
            take_samples,
        )
        from distir.cost import products_text
        from distir.ir.types import DType

        dtype = DType.parse(PRECISIONS[arguments.on])
        samples = take_samples(
            arguments.on, dtype, arguments.deadline, lambda what: note(f"times {what}")
        )
        devices = arguments.devices or devices_here(arguments.on)
        profile = fitted_profile(samples, arguments.name, memory_bytes(arguments.on), devices)
        source = f"measured by autotune profile on {described(arguments.on)}"
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            "device": device_text(profile, source),
            "cluster": cluster_text(profile, "device.toml", source),
            "stack": stack_text(profile, source, "products.toml" if arguments.products else None),
        }
        if arguments.products:
            table = measured_products(samples, profile, described(arguments.on))
            files["products"] = products_text(table, source)
        for name, text in files.items():
            write_text(folder / f"{name}.toml", text)
    plain: dict[str, Any] = {
        "files": {name: str(folder / f"{name}.toml") for name in files},
        "source": source,
        "samples": len(samples.ops) + len(samples.steps) + len(samples.messages),
        "mean_error_of_ops": profile.error,
        "peak_flops_per_second": dict(profile.cluster.device.peak_flops_per_second),
        "launch_seconds": profile.stack.eager_launch_seconds,
    }
    output.write(plain, lambda: _report(plain, arguments))
    return 0


def _report(plain: dict[str, Any], arguments: argparse.Namespace) -> Any:
    from rich.console import Group
    from rich.text import Text

    from distir.units import short_seconds

    files = plain["files"]
    rate = max(plain["peak_flops_per_second"].values()) / 1e12
    return Group(
        Text(f"{plain['source']}", style="bold"),
        Text(
            f"{plain['samples']} timings; products reach {rate:.3g} TFLOP/s, a launch takes "
            f"{short_seconds(plain['launch_seconds'])}; the constants are "
            f"{plain['mean_error_of_ops']:.0%} off the ops' times, on average."
        ),
        Text(
            f"Wrote {', '.join(files.values())}. Use them: autotune simulate --model gpt2 "
            f"--cluster {files['cluster']} --stack {files['stack']}"
        ),
        Text(f"Measure against them: autotune measure --on {arguments.on} … with the same options"),
    )
