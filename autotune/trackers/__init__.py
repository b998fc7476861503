"""Trackers: where a study is recorded. The default records nothing; `trackers.mlflow` is the
one file that knows MLflow.
"""

from __future__ import annotations

from autotune.result import TrackingRecord
from autotune.trackers.tracker import NullTracker, StudyHeader, Tracker

__all__ = ["NullTracker", "StudyHeader", "Tracker", "TrackingRecord"]
