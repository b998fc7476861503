"""A report as one HTML file, and the figures in it.

Data come first: functions from results to plain values (`time.py`, `memory.py`, `space.py`,
`search.py`, `why.py`, `assumed.py`), which know nothing of pictures. `contents.py` says what a page
is made of, `answers.py` writes what stands first, `sections.py` the sections, and `reports.py` says
which of them the result of each command has (`compact.py`: in short). `render.py` makes HTML of it:
a template, a script that draws, and Apache ECharts, all in the one file.
"""
