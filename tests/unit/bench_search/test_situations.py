import math
from functools import cache

import numpy as np
import pytest

from optimizer.core.scoring import Verdict
from optimizer.core.trial import TrialState
from tests.bench.search.catalogue import SETS, chosen, set_of
from tests.bench.search.drawing import random_params
from tests.bench.search.measuring import judged, measured, noisy
from tests.bench.search.optimum import find
from tests.bench.search.situation import Noise, Situation, rng_of

NAMES = [name for words in ("tuning", "judging") for name in SETS[words].situations]
DRAWS = 200


@cache
def instance(name: str, place: int = 0) -> Situation:
    return fresh(name, place)


def fresh(name: str, place: int) -> Situation:
    found = set_of(name)
    return found.situations[name](found.seeds[place])


@pytest.fixture(scope="module", params=NAMES)
def situation(request):
    return instance(request.param)


def test_there_are_four_kinds_in_each_set_and_no_seed_or_name_in_two():
    assert min(len(SETS[words].situations) for words in ("tuning", "judging")) >= 4
    assert len(chosen("tuning,judging,grid")) == len(set(chosen("tuning,judging,grid")))
    seeds = [seed for found in SETS.values() for seed in found.seeds]
    assert len(seeds) == len(set(seeds))
    assert set(SETS["tuning"].sources).isdisjoint(set(SETS["judging"].sources) - set(SETS["tuning"].sources))
    assert "chunk_engine.py" not in SETS["judging"].sources


def test_random_settings_crash_and_hold_in_the_stated_bands(situation):
    truths = [situation.truth(random_params(situation, rng_of("band", at))) for at in range(DRAWS)]
    crashing = np.mean([truth.crash is not None for truth in truths])
    feasible = np.mean([math.isfinite(situation.worth(truth)) for truth in truths])
    assert 0.01 <= crashing <= 0.45
    assert 0.004 <= feasible <= 0.16


def test_the_space_has_at_least_ten_parameters_of_several_kinds(situation):
    kinds = {parameter.kind for parameter in situation.space.parameters.values()}
    assert len(situation.space.parameters) >= 10
    assert kinds == {"float", "int", "choice", "bool"}
    assert situation.space.rules
    assert any(parameter.when for parameter in situation.space.parameters.values())


def test_the_baseline_starts_and_keeps_the_rules(situation):
    assert not situation.broken_rules(situation.baseline)
    assert situation.truth(situation.baseline).crash is None


def test_graded_violations_are_above_0_and_finite(situation):
    truths = [situation.truth(random_params(situation, rng_of("crash", at))) for at in range(DRAWS)]
    graded = [truth.crash.violation for truth in truths if truth.crash is not None]
    assert all(violation is None or 0.0 < violation < 10.0 for violation in graded)
    assert any(violation is not None for violation in graded)


def test_figures_are_finite_and_above_0(situation):
    for at in range(60):
        metrics = situation.truth(random_params(situation, rng_of("figures", at))).metrics
        assert all(math.isfinite(value) and value >= 0.0 for value in metrics.values())
        assert all(value > 0.0 for name, value in metrics.items() if name.endswith("_ms"))


@pytest.mark.parametrize("name", ["memory-starved", "arrivals"])
def test_an_optimum_exists_is_feasible_and_no_random_setting_beats_it(name):
    found = instance(name)
    best = find(found, draws=300, starts=1)
    assert found.worth(found.truth(best.params)) == best.value > 0.0
    assert not found.broken_rules(best.params)
    worths = [found.worth(found.truth(random_params(found, rng_of("rivals", at)))) for at in range(DRAWS)]
    assert max(worths) <= best.value


@pytest.mark.parametrize("name", ["tight-p99", "few-clients", "scarce"])
def test_a_seed_draws_the_same_instance_and_another_one_another(name):
    one, same, other = instance(name), fresh(name, 0), instance(name, 1)
    assert one.limits == same.limits
    assert one.truth(one.baseline) == same.truth(one.baseline)
    assert one.limits != other.limits
    assert one.truth(one.baseline) != other.truth(one.baseline)


def test_the_knobs_interact():
    """What is the better of two values of one parameter depends on another: the space is not separable."""
    found = instance("memory-starved")
    flipped = 0
    for at in range(60):
        one = random_params(found, rng_of("interact", at))
        worths = []
        for seqs in (8, 96):
            values = [
                found.value(truth)
                for batched in (512, 4096)
                if (truth := found.truth({**one, "max-num-seqs": seqs, "max-num-batched-tokens": batched})).crash
                is None
            ]
            worths.append(values)
        if all(len(values) == 2 for values in worths):
            flipped += (worths[0][0] < worths[0][1]) != (worths[1][0] < worths[1][1])
    assert flipped > 0


def test_noise_has_the_stated_size_and_a_slow_run_is_slow_in_everything():
    found = instance("tight-p99")
    truth = found.truth(found.baseline)
    runs = [noisy(truth, Noise(0.03, 0.05), np.random.default_rng(at)) for at in range(3000)]
    throughput = np.log([run["output_tokens_per_s"] / truth.metrics["output_tokens_per_s"] for run in runs])
    latency = np.log([run["p99_tpot_ms"] / truth.metrics["p99_tpot_ms"] for run in runs])
    assert throughput.std() == pytest.approx(0.03, rel=0.06)
    assert latency.std() == pytest.approx(0.05, rel=0.06)
    assert np.corrcoef(throughput, latency)[0, 1] == pytest.approx(-0.5, abs=0.06)
    assert abs(throughput.mean()) < 0.003


def test_a_run_is_the_same_for_whoever_asks_and_differs_from_trial_to_trial():
    found = instance("tight-p99")
    assert measured(found, 0, found.baseline) == measured(found, 0, found.baseline)
    assert measured(found, 0, found.baseline).value != measured(found, 5, found.baseline).value


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.9, Verdict.FEASIBLE), (0.99, Verdict.UNDECIDED), (1.01, Verdict.UNDECIDED), (1.1, Verdict.INFEASIBLE)],
)
def test_a_verdict_is_undecided_near_the_limit(share, verdict):
    found = instance("tight-p99")
    metrics = {name: 0.5 * limit for name, limit in found.limits.items()}
    metrics |= {"output_tokens_per_s": 100.0, "requests_counted": 300.0}
    metrics["p99_tpot_ms"] = share * found.limits["p99_tpot_ms"]
    scored = judged(found, metrics)
    assert scored.verdict is verdict
    assert scored.low < scored.value < scored.high


def test_a_crash_is_a_failure_of_the_setting():
    found = instance("memory-starved")
    trial = measured(found, 1, {})
    assert trial.state is TrialState.FAILED
    assert trial.failure.violation > 0.0
    assert trial.score is None
