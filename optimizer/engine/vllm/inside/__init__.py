"""Scripts that the engine's own Python runs. Only here are `vllm` and `torch` imported; nothing here imports us."""
