"""`python -m optimizer.engine.simulated`: the simulated engine as a process."""

from __future__ import annotations

import os
import sys

from optimizer.core.errors import AutotuneError
from optimizer.engine.simulated.server_process import serve


def main() -> int:
    """Serves until stopped; returns the exit status."""
    try:
        return serve(sys.argv[1:], os.environ)
    except AutotuneError as error:
        sys.stderr.write(f"{error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
