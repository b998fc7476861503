"""Published figures of offloading to hosts, beside what is simulated."""
