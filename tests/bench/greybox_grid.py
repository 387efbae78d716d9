"""How well the grey box foretells the real grid of `tiny-cpu` from a few of its runs.

Usage: python -m tests.bench.greybox_grid [DRAWS]
"""

from __future__ import annotations

import sys

from tests.greybox_on_grid import foretelling


def main(draws: int) -> None:
    """Print a table: the baseline and so many other runs are known, all the rest is foretold."""
    print(f"means over {draws} draws; sd in log units")
    print(f"{'known':>5}  {'quantity':<12} {'rank corr.':>10} {'residual sd':>11} {'spread sd':>9} {'weight':>6}")
    for others in (0, 4, 10, 30):
        for key, one in foretelling(others, draws).items():
            figures = f"{one.rank_correlation:>10.2f} {one.residual_sd:>11.2f} {one.spread_sd:>9.2f} {one.weight:>6.2f}"
            print(f"{1 + others:>5}  {key:<12} {figures}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
