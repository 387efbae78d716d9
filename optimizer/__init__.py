"""vllm-autotune: tunes a vLLM server unattended and proves the result."""

__version__ = "0.1.0"
