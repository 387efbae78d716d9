"""A server that stands in for vLLM in drills, demos and tests: real processes and HTTP around an analytic scheduler.

Start it as vLLM is started, with vLLM's flags:

    AUTOTUNE_SIM_SPEED=20 python -m optimizer.engine.simulated --model search_spaces/models/tiny-kv --port 8000

It has vLLM's endpoints, metric names and histograms, log lines, failure texts, exit codes and process tree: an API
server as leader and a child `VLLM::EngineCore` that outlives a SIGKILL of the leader. Memory, queueing, chunked
prefill, preemption, prefix reuse and speculative decoding follow vLLM's rules; step times come from the formula in
`step_time`. Its numbers say nothing about a real engine.

Faults are scripted in the environment (`AUTOTUNE_SIM_FAULTS`): docs/drills.md shows how, and what the tuner makes of
each. `--help` lists every fault and environment variable.
"""
