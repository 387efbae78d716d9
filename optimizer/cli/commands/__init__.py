"""The commands. Each module imports what it runs inside its function, so that `--help` does not load the optimizer."""
