"""The command line: one module per command, results on stdout, progress and trouble on stderr."""
