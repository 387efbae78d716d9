"""How many threads linear algebra takes, seen in a process of its own: the limit holds as long as it lives."""

from __future__ import annotations

import json
import os
import subprocess
import sys

LOOK = """
import json, os
import numpy, scipy.linalg
from optimizer.host.blas import use_one_blas_thread

environment = dict(os.environ)
use_one_blas_thread()
same = environment == dict(os.environ)
from threadpoolctl import threadpool_info, threadpool_limits

def threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

limited = threads()
threadpool_limits(limits=2, user_api="blas")
print(json.dumps([threads(), limited, same]))
"""


def test_every_blas_that_is_loaded_keeps_to_one_thread_and_engines_inherit_nothing_of_it():
    env = {name: value for name, value in os.environ.items() if name != "KMP_DUPLICATE_LIB_OK"}
    env["OPENBLAS_NUM_THREADS"] = "2"
    done = subprocess.run([sys.executable, "-c", LOOK], env=env, capture_output=True, text=True, check=True, timeout=60)
    free, limited, environment_is_the_same = json.loads(done.stdout)
    assert len(free) >= 2, "NumPy's and SciPy's"
    assert free == [2] * len(free)
    assert limited == [1] * len(free)
    assert environment_is_the_same
