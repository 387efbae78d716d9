"""The probe's own logic; it runs whole against the simulated engine by `--engine simulated`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gpu.bound_probe import VARIANTS, Variant, still_to_do, told, traffic

METRICS = {"output_tokens_per_s": 1600.0, "gpu_util_mean": 0.41, "gpu_power_w_mean": 312.4}
ROLES = [{"role": "api_server", "busiest": {"cores": 0.97}}]


def row(variant: Variant, **changes: object) -> dict[str, object]:
    return {
        "traffic": "unique",
        "variant": {"name": variant.name},
        "roles": ROLES,
        "metrics": METRICS,
        "bound_by": "api_server",
        "why": "x",
        **changes,
    }


def test_what_was_measured_is_not_measured_again_and_what_failed_is(tmp_path: Path) -> None:
    out = tmp_path / "bound.jsonl"
    assert still_to_do(out, "unique") == list(VARIANTS)
    rows = [row(VARIANTS[0]), row(VARIANTS[1], failure="engine_crash: x"), row(VARIANTS[2], traffic="shared")]
    out.write_text("".join(json.dumps(line) + "\n" for line in rows))
    assert still_to_do(out, "unique") == list(VARIANTS[1:])
    assert still_to_do(out, "shared") == [variant for variant in VARIANTS if variant != VARIANTS[2]]


def test_variants_of_one_engine_follow_each_other() -> None:
    servers = [variant.api_servers for variant in VARIANTS]
    assert servers == sorted(servers)
    assert (VARIANTS[0].api_servers, VARIANTS[0].processes) == (1, 1)


def test_a_line_names_threads_card_and_bound() -> None:
    line = told(row(VARIANTS[0]))
    assert (
        line == "default: 1600 output tok/s; busiest threads: api_server 0.97; GPU 41%, 312 W; bound by api_server: x"
    )
    assert told(row(VARIANTS[3], failure="startup_timeout: late")) == "4 API servers: startup_timeout: late"


@pytest.mark.parametrize(("kind", "prompt_tokens"), [("unique", 1500), ("shared", 2400)])
def test_the_traffic_is_that_of_the_first_figures(kind: str, prompt_tokens: int) -> None:
    assert traffic(kind, 128, 40.0).longest_prompt_tokens == prompt_tokens
