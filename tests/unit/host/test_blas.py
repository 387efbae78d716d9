"""How many threads linear algebra takes, seen in a process of its own: the limit holds as long as it lives."""

from __future__ import annotations

import json
import os
import subprocess
import sys

LOOK = """
import json, os
from threadpoolctl import threadpool_info
from optimizer.host.blas import use_one_blas_thread

def threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

before = threads()
use_one_blas_thread()
print(json.dumps([before, threads(), os.environ["OPENBLAS_NUM_THREADS"]]))
"""


def test_every_blas_that_is_loaded_keeps_to_one_thread_and_engines_inherit_nothing_of_it():
    env = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", LOOK], env=env, capture_output=True, text=True, check=True, timeout=60)
    before, after, inherited = json.loads(done.stdout)
    assert len(before) >= 2, "NumPy's and SciPy's"
    assert after == [1] * len(before)
    assert inherited == "2"
