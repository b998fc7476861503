"""Studies that outlast a process, and that many workers share, on Optuna's storages."""
