"""The machine: processes, ports, CPUs, memory, files. Knows nothing of engines or studies."""
