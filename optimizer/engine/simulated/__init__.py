"""A server that stands in for vLLM in drills, demos and tests: real processes and HTTP around an analytic scheduler.

Start it as vLLM is started, with vLLM's flags:

    AUTOTUNE_SIM_SPEED=20 python -m optimizer.engine.simulated --model search_spaces/models/tiny-kv --port 8000

It has vLLM's endpoints, metric names, log lines, failure texts, exit codes and process tree: an API server as leader
and a child `VLLM::EngineCore` that outlives a SIGKILL of the leader. Memory, queueing, chunked prefill, preemption and
prefix reuse follow vLLM's rules; step times come from the formula in `step_time`. Its numbers say nothing about a real
engine.

How to drill: script faults in the environment and watch what the tuner makes of them.

    # the engine dies of CUDA out of memory under its 20th request, but only with more than the usual batch
    AUTOTUNE_SIM_FAULTS='[{"fault": "oom_under_load", "when": {"max-num-batched-tokens": 8192}, "after_requests": 19}]'

    # the first launch never gets ready, the second one does
    AUTOTUNE_SIM_FAULTS='[{"fault": "never_ready", "nth_launch": 1}]' AUTOTUNE_SIM_STATE=/tmp/launches

    # tokens stop 5 s after the server is ready, while /health stays 200
    AUTOTUNE_SIM_FAULTS='[{"fault": "hang_health_200", "after_s": 5}]'

    # the leader does not hear SIGTERM, and killpg does not reach its child
    AUTOTUNE_SIM_FAULTS='[{"fault": "ignore_sigterm"}, {"fault": "escape_group"}]'

`--help` lists every fault and environment variable.
"""
