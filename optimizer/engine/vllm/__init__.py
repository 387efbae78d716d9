"""vLLM as a process: argv, environment, readiness, log facts, failures."""
