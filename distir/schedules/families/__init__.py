"""The schedule families for training, one per file.

To add a family, add a file with a function that `schedule_family` decorates: all modules of this
package are imported. A package of its own names the module of its family in the entry-point group
`distir.schedules`:

    [project.entry-points."distir.schedules"]
    my-schedule = "my_package"
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

__all__ = ["register_families"]


def register_families() -> None:
    """Imports all families of this package, which registers them."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
