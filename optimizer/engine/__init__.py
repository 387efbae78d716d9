"""Engines: how one is launched, watched and stopped. `vllm` is the real one; `simulated` serves drills and tests."""
