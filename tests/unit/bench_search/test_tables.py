import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.search import __main__ as command
from tests.bench.search.catalogue import set_of
from tests.bench.search.rows import Mark, Pick, Row, append_row, best_known, read_rows
from tests.bench.search.tables import paired, print_tables, regrets, summary


def pick(value: float | None, excess: float | None = -0.1) -> Pick:
    return Pick(params={}, value=value, excess=excess)


def row(
    value: float | None,
    *,
    excess: float = -0.1,
    seed: int = 0,
    strategy: str = "random",
    optimum: float = 100.0,
    crashes: int = 1,
    trials: int = 10,
) -> Row:
    found = None if value is None else pick(value, excess)
    mark = Mark(best=found, recommended=found, crashes=crashes, launches=trials, ask_s=0.5, ask_s_max=1.0)
    return Row(
        situation="few-clients", seed=seed, strategy=strategy, trials=trials, optimum=optimum, best_launched=value,
        states="f" * trials, marks={trials: mark}, claim="", digest=set_of("few-clients").digest, versions="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "tolerance", "regret"),
    [
        (pick(80.0), 0.0, 0.2),
        (pick(80.0, 0.03), 0.0, 1.0),
        (pick(80.0, 0.03), 0.05, 0.2),
        (pick(80.0, 0.06), 0.05, 1.0),
        (pick(None, None), 0.05, 1.0),
    ],
)
def test_regret_is_whole_for_what_breaks_a_limit_or_crashes(setting, tolerance, regret):
    assert setting.regret(100.0, tolerance) == pytest.approx(regret)


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=6), st.floats(0.1, 1e4))
def test_no_regret_is_below_0_or_above_100(values, optimum):
    rows = [row(value, seed=0, strategy=str(at), optimum=optimum) for at, value in enumerate(values)]
    found = regrets(rows, best_known(rows), 10, "recommended")
    assert (found >= 0.0).all() and (found <= 100.0).all()


def test_a_setting_better_than_the_optimum_becomes_the_optimum():
    assert best_known([row(90.0), row(110.0, strategy="gp")]) == {("few-clients", 0): 110.0}
    assert best_known([row(110.0, excess=0.2)])["few-clients", 0] == 110.0  # best_launched counts what is feasible
    assert best_known([row(90.0)]) == {("few-clients", 0): 100.0}


def test_a_summary_counts_quartiles_shares_and_means():
    rows = [row(value, seed=at, crashes=at) for at, value in enumerate((100.0, 90.0, 60.0, None))]
    rows.append(row(95.0, excess=0.02, seed=4, crashes=4))
    found = summary(rows, best_known(rows), 10, "recommended")
    assert found.n == 5
    assert found.quartiles == pytest.approx((10.0, 40.0, 100.0))
    assert found.mean == pytest.approx(50.0)
    assert found.feasible == pytest.approx(3 / 5)
    assert found.tolerated == pytest.approx(4 / 5)
    assert found.crashes == pytest.approx(2.0)


def test_pairs_are_of_the_same_instance_and_wilcoxon_tells_a_constant_lead():
    ours = [row(90.0 + 0.1 * seed, seed=seed, strategy="gp") for seed in range(12)]
    theirs = [row(70.0, seed=seed) for seed in range(2, 14)]
    found = paired(ours, theirs, best_known([*ours, *theirs]), 10, "recommended")
    assert (found.n, found.better, found.worse) == (10, 10, 0)
    assert found.difference == pytest.approx(-20.65)
    assert found.p == pytest.approx(2 / 2**10)


def test_no_difference_is_no_evidence():
    same = [row(90.0, seed=seed) for seed in range(3)]
    assert paired(same, same, best_known(same), 10, "best").p == 1.0
    assert paired(same, [row(90.0, seed=9)], best_known(same), 10, "best") is None


def test_tables_name_every_strategy(capsys):
    rows = [row(90.0, seed=seed) for seed in range(3)] + [row(95.0, seed=seed, strategy="gp") for seed in range(3)]
    print_tables(rows, against="random")
    said = capsys.readouterr().out
    assert "| random | 10 | 3 | 10 (10-10) |" in said
    assert "| gp | 10 | 3 | 5 (5-5) |" in said
    assert "| gp | 10 | 3 | 3 / 0 | -5.0 |" in said


def test_rows_are_read_back_and_the_longer_study_counts(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    for one in (row(80.0), row(85.0, trials=30), row(82.0, trials=20), row(70.0, seed=1)):
        append_row(path, one)
    assert [(found.seed, found.trials) for found in read_rows([path, tmp_path / "none"])] == [(0, 30), (1, 10)]


@pytest.fixture
def asked(monkeypatch):
    """The studies that a command ran; it is for a process of its own, and sets the environment of that."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    keys = []

    def one_study(name, seed, strategy, trials, claim):
        keys.append((name, seed, strategy, trials))
        return row(90.0, seed=seed, strategy=strategy, trials=trials)

    monkeypatch.setattr(command, "one_study", one_study)
    return keys


def test_a_run_goes_on_where_it_was_stopped(asked, tmp_path):
    words = ["run", "--situations", "few-clients", "--jobs", "0", "--out", str(tmp_path / "rows.jsonl")]
    command.main([*words, "--strategies", "random", "--seeds", "0,2", "--trials", "10"])
    command.main([*words, "--strategies", "random,tpe", "--seeds", "0-2", "--trials", "10"])
    assert asked[:2] == [("few-clients", 0, "random", 10), ("few-clients", 2, "random", 10)]
    assert asked[2] == ("few-clients", 1, "random", 10)
    assert {key[2] for key in asked[3:]} == {"tpe"}
    command.main([*words, "--strategies", "tpe", "--seeds", "0-2", "--trials", "20"])
    assert asked[-1] == ("few-clients", 2, "tpe", 20)
    assert len(asked) == 9


def test_judging_needs_a_claim_and_a_strategy_that_exists(tmp_path):
    words = ["run", "--jobs", "0", "--out", str(tmp_path / "rows.jsonl"), "--seeds", "0"]
    with pytest.raises(SystemExit, match="--claim"):
        command.main([*words, "--situations", "judging", "--strategies", "random"])
    with pytest.raises(SystemExit, match="'annealing'"):
        command.main([*words, "--situations", "tuning", "--strategies", "annealing"])
    assert not np.any([path.exists() for path in tmp_path.iterdir()])
