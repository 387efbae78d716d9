"""An external evaluator whose behaviour in each trial stands in `behave.json`, read anew each time.

Run as a program; standard library only. It notes each call as a line of `calls.jsonl`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    request = json.load(sys.stdin)
    with Path("calls.jsonl").open("a") as calls:
        calls.write(json.dumps(request) + "\n")
    behave = json.loads(Path("behave.json").read_text()) if Path("behave.json").is_file() else {}
    todo = behave.get(str(request["trial"]), {})
    if "hang" in todo:
        if todo["hang"] == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.stderr.write("hanging\n")
        sys.stderr.flush()
        Path("hangs").write_text(str(os.getpid()))
        time.sleep(600)
    if "exit" in todo:
        sys.stderr.write("Traceback\nRuntimeError: no such pod\n")
        raise SystemExit(todo["exit"])
    if "say" in todo:
        sys.stdout.write(todo["say"] + "\n")
        return
    seqs = request["flags"].get("max-num-seqs", 64)
    figures = {"output_tokens_per_s": 100.0 + seqs, "p50_e2e_ms": 500.0 + seqs, **todo.get("metrics", {})}
    answer = {"status": "ok", "metrics": figures, "stderr": todo.get("stderr", {})}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
