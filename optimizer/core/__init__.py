"""Domain types that every layer shares: no I/O, no engine, no search."""
