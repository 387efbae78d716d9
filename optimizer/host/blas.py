"""How many threads linear algebra takes."""

from __future__ import annotations

import os

_SET_BY_IMPORT = "KMP_DUPLICATE_LIB_OK"


def use_one_blas_thread() -> None:
    """Have NumPy and SciPy compute in the thread that asks, for the rest of this process's life.

    Their BLAS starts a thread for each core, and these wait in a loop for the next small matrix of a search: with two
    cores an ask takes twice the CPU time, which the engine beside it needs. The environment stays as it is, since
    engines inherit it: OPENBLAS_NUM_THREADS would be theirs too, and a variable that threadpoolctl sets is taken back.
    """
    import scipy.linalg  # noqa: F401 (SciPy has a BLAS of its own, and only what is loaded can be told)

    was_set = _SET_BY_IMPORT in os.environ
    from threadpoolctl import threadpool_limits

    if not was_set:
        os.environ.pop(_SET_BY_IMPORT, None)
    threadpool_limits(limits=1, user_api="blas")
