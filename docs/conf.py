"""How the documentation is built: `make docs` writes it to `build/docs`.

Why Sphinx: decisions/0017.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "extensions")]

from distir import __version__  # noqa: E402 (found by the line above)

project = "distir and autotune"
author = "the distir authors"
copyright = author  # noqa: A001 (that is what Sphinx calls it)
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "command_line", "listing", "public_names"]

# The sources are the whole repository, so that links between its pages are the same on its web page
# and on the site, and all of them are checked.
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "experiments/**.md"]
exclude_patterns = [".*", "build", "dist", "tests", "distir", "autotune", "search_spaces"]
nitpicky = True  # a reference that leads nowhere is a warning, and `make docs` fails on warnings

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3  # headings can be linked to, as on the repository's web page
highlight_language = "text"  # of blocks that do not state one

default_role = "code"  # docstrings write names between single backticks
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    "undoc-members": True,
    # but for what Python documents itself
    "inherited-members": "BaseException, Enum, Protocol, tuple",
}
maximum_signature_line_length = 80

html_theme = "furo"
html_title = project
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["reports.css"]
html_extra_path = ["index.html"]  # leads from the top of the site to docs/index.html
html_theme_options = {"navigation_with_keys": True}
