"""`python -m optimizer`: the same commands as the `vllm-autotune` console script."""

from optimizer.cli.main import main

if __name__ == "__main__":
    main()
