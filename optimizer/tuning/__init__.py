"""The study loop and the pipeline of one trial."""
