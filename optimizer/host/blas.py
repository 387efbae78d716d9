"""How many threads linear algebra takes."""

from __future__ import annotations

import scipy.linalg  # noqa: F401 (SciPy brings a BLAS of its own beside NumPy's, and only what is loaded can be told)
from threadpoolctl import threadpool_limits


def use_one_blas_thread() -> None:
    """Have NumPy and SciPy compute in the thread that asks, for the rest of this process's life.

    Their BLAS starts a thread for each core, and these wait in a loop for the next small matrix of a search: with two
    cores an ask takes twice the CPU time, which the engine beside it needs. OPENBLAS_NUM_THREADS would do the same, and
    engines would inherit it.
    """
    threadpool_limits(limits=1, user_api="blas")
