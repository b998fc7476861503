"""MLflow, which this package alone knows.

A study is one parent run: step metrics (the best so far, the regret against the grid) over the
number of the trial, a description with the answer, files, and one table of all trials. Trials have
runs of their own while they are few; of many, the best, the Pareto front and the best of each
layout do. A study on a storage that is resumed goes on with its run; what a process has left open
that died is closed as killed. The grid is a study beside it, once per problem: in charts a line at
the height that searches may reach; of its trials the best are kept.

`tracker.py` has the thread that writes, `writer.py` says what is written of a study, `entries.py`
which numbers, `store.py` writes call by call, and `database.py` makes a new database file.
"""

from autotune.trackers.mlflow.tracker import DEFAULT_URI, MlflowTracker
from autotune.trackers.mlflow.writer import close_runs_of_the_dead

__all__ = ["DEFAULT_URI", "MlflowTracker", "close_runs_of_the_dead"]
