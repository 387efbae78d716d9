"""Studies in which only the engine is invented: a real sampler and search, and outcomes that a test makes up."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st

from optimizer.core.engine_config import EngineConfig, FlagValue
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.record import ParamValue, TrialRecord
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.trial import Stage, TrialRole, TrialState
from optimizer.search_spaces import (
    BoolParameter,
    ChoiceParameter,
    FloatParameter,
    IntParameter,
    Parameter,
    Rule,
    SearchSpace,
)
from optimizer.storage import StudyStore
from optimizer.tuning.optuna_search import OptunaSearch
from optimizer.tuning.prescreen import Misfit
from optimizer.tuning.rule_keeping_sampler import RuleKeepingSampler
from optimizer.tuning.settings import Settings
from optimizer.tuning.strategies import NAMES, strategy_named
from optimizer.tuning.strategies.catalogue import MODELLING

METRIC = "output_tokens_per_s"
Outcome = Callable[[int, Mapping[str, ParamValue]], TrialRecord]
Check = Callable[[Mapping[str, ParamValue]], Misfit | None]

SLOW = ("optuna-gp",)
"""Half a second an ask and more: fewer trials are enough of them."""
FAST = tuple(name for name in NAMES if name not in SLOW)

SPACE = SearchSpace(
    {
        "max-num-seqs": IntParameter(kind="int", low=4, high=128, log=True),
        "max-num-batched-tokens": ChoiceParameter(kind="choice", choices=(64, 128, 256)),
        "gpu-memory-utilization": FloatParameter(kind="float", low=0.5, high=0.95, step=0.05),
        "enable-prefix-caching": BoolParameter(kind="bool"),
        "speculation": ChoiceParameter(
            kind="choice", sets={"none": {}, "ngram": {"speculative-config.method": "ngram"}}
        ),
        "num-speculative-tokens": IntParameter(
            kind="int",
            low=1,
            high=4,
            flag="speculative-config.num_speculative_tokens",
            when={"speculation": "ngram"},
        ),
    },
    (Rule.parse("max-num-seqs * 2 <= max-num-batched-tokens"),),
)
"""A space as people write them."""


@dataclass(frozen=True)
class PlainResolver:
    """A space without fixed flags; the baseline is given as flags."""

    space: SearchSpace
    baseline: Mapping[str, FlagValue] = field(default_factory=dict)

    def resolve(self, params: Mapping[str, ParamValue], *, device_memory_bytes: int | None) -> EngineConfig:
        return self.space.resolve(
            params, engine="vllm", model="m", fixed_flags={}, env={}, device_memory_bytes=device_memory_bytes
        )

    def baseline_config(self, *, device_memory_bytes: int | None) -> EngineConfig:
        return EngineConfig("vllm", "m", self.baseline)

    def baseline_params(self, *, device_memory_bytes: int | None) -> tuple[dict[str, ParamValue], tuple[str, ...]]:
        return self.space.params_from_flags(self.baseline, device_memory_bytes=device_memory_bytes)


@dataclass
class MadeUpStudy:
    """A study of one strategy. `search` opens it anew, as another process would; `records` is what is on record."""

    strategy: str
    space: SearchSpace = SPACE
    seed: int = 0
    baseline: Mapping[str, FlagValue] = field(default_factory=dict)
    maximise: bool = True
    check: Check | None = None
    store: StudyStore | None = None
    records: list[TrialRecord] = field(default_factory=list)

    def sampler(self) -> RuleKeepingSampler:
        settings, check = Settings(PlainResolver(self.space, self.baseline)), self.check
        return RuleKeepingSampler(
            self.space,
            settings.broken_rules,
            fixed=settings.fixed_proposals(),
            seed=self.seed,
            prescreen=None if check is None else lambda: check,
            strategy=strategy_named(self.strategy, self.space),
            records=lambda: self.records,
            flips=self.strategy in MODELLING,
        )

    def search(self) -> OptunaSearch:
        return OptunaSearch(self.store, "s", metric=METRIC, maximise=self.maximise, sampler=self.sampler())

    def run(
        self, trials: int, outcome: Outcome | None = None, *, within: OptunaSearch | None = None
    ) -> list[dict[str, ParamValue]]:
        """Ask and tell that many trials; the proposals."""
        search = self.search() if within is None else within
        return [self.step(search, *search.ask(), outcome=outcome or self.mixed) for _ in range(trials)]

    def step(
        self, search: OptunaSearch, number: int, params: dict[str, ParamValue], *, outcome: Outcome
    ) -> dict[str, ParamValue]:
        """Record and tell one trial."""
        record = dataclasses.replace(outcome(number, params), params=params)
        if record.score is not None and not self.maximise:
            record = dataclasses.replace(record, score=dataclasses.replace(record.score, maximise=False))
        self.records.append(record)
        search.tell(record)
        return params

    def mixed(self, number: int, params: Mapping[str, ParamValue]) -> TrialRecord:
        """Failures, infeasible, undecided and feasible trials in turn; values follow the parameters."""
        if number % 5 == 3:
            return failed(number, 0.5)
        score = sum(float(v) if not isinstance(v, str) else len(v) for v in params.values())
        violation = {2: 0.3, 4: None}.get(number % 5, -0.1)
        return measured(number, 100.0 + score % 50, violation)


def measured(number: int, value: float, violation: float | None) -> TrialRecord:
    """A trial with one limit; a violation of None is an undecided one."""
    verdict = Verdict.UNDECIDED
    if violation is not None:
        verdict = Verdict.INFEASIBLE if violation > 0 else Verdict.FEASIBLE
    observed = 800.0 * math.exp(violation or 0.0)
    limit = Constraint("p99_e2e_ms", 800.0, observed, observed * 0.95, observed * 1.05, violation, verdict)
    record = TrialRecord("s", number, TrialRole.SEARCH, TrialState(verdict.value))
    return dataclasses.replace(record, score=Score(METRIC, value, True, verdict, (limit,)))


def failed(number: int, violation: float | None = None) -> TrialRecord:
    failure = Failure(FailureKind.KV_CACHE_TOO_SMALL, Stage.LAUNCHING, Blame.CONFIG, "no", violation=violation)
    return TrialRecord("s", number, TrialRole.SEARCH, TrialState.FAILED, failure=failure)


def host_fault(number: int) -> TrialRecord:
    failure = Failure(FailureKind.HOST_FAULT, Stage.LAUNCHING, Blame.HOST, "no")
    return TrialRecord("s", number, TrialRole.SEARCH, TrialState.FAILED, failure=failure)


OUTCOMES: dict[str, Outcome] = {
    "all fail": lambda number, params: failed(number),
    "all equal": lambda number, params: measured(number, 100.0, -0.1),
    "all infeasible": lambda number, params: measured(number, 100.0 + number, 0.2),
    "all undecided": lambda number, params: measured(number, 100.0 + number, None),
    "no number": lambda number, params: measured(number, math.nan, (math.nan, math.inf, -0.1)[number % 3]),
    "no end": lambda number, params: measured(number, (math.inf, -math.inf, 0.0)[number % 3], -math.inf),
}
"""Histories from which nothing, or nonsense, is to be learnt."""


def assert_kept(space: SearchSpace, proposal: Mapping[str, ParamValue]) -> None:
    """The proposal has exactly the parameters that exist under it, each in its range, and breaks no rule."""
    assert set(proposal) == set(space.active(proposal))
    space.check(proposal)
    assert space.broken_rules(space.flags(proposal, device_memory_bytes=None)) == ()
    assert {type(value) for value in proposal.values()} <= {bool, int, float, str}, "nothing of numpy's"


def some_cannot_start(params: Mapping[str, ParamValue]) -> Misfit | None:
    """A third of all settings, without rhyme or reason."""
    code = zlib.crc32(repr(sorted(params.items())).encode())
    return Misfit("a KV pool of 1 GiB is smaller than one request", 0.4) if code % 3 == 0 else None


@st.composite
def numbers(draw: st.DrawFn) -> Parameter:
    low = draw(st.integers(0, 20))
    if draw(st.booleans()):
        kind = draw(st.sampled_from(["plain", "log", "step"]))
        step = draw(st.integers(2, 5)) if kind == "step" else 1
        low = max(low, 1) if kind == "log" else low
        high = low + step * draw(st.integers(1, 40))
        return IntParameter(kind="int", low=low, high=high, log=kind == "log", step=step)
    kind = draw(st.sampled_from(["plain", "log", "step"]))
    if kind == "step":
        width = draw(st.sampled_from([0.1, 0.05, 0.25, 3.0]))
        high_at = round(low + width * draw(st.integers(1, 30)), 6)
        return FloatParameter(kind="float", low=float(low), high=high_at, step=width)
    start = draw(st.floats(1e-9 if kind == "log" else 0.0, 10.0))
    return FloatParameter(kind="float", low=start, high=start + draw(st.floats(1e-6, 10.0)), log=kind == "log")


choices = st.lists(st.integers(0, 9) | st.sampled_from("abc"), min_size=1, max_size=4, unique=True).map(
    lambda values: ChoiceParameter(kind="choice", choices=tuple(values))
)
switches = st.just(BoolParameter(kind="bool"))


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    """Two to six parameters, some conditional on earlier ones, with up to two rules between numbers."""
    parameters: dict[str, Parameter] = {}
    for index in range(draw(st.integers(2, 6))):
        parameter = draw(numbers() if index < 2 else st.one_of(numbers(), choices, switches))
        deciders = [n for n, p in parameters.items() if isinstance(p, ChoiceParameter | BoolParameter)]
        conditional: bool = draw(st.booleans())
        if deciders and conditional:
            name = draw(st.sampled_from(deciders))
            decider = parameters[name]
            value = draw(st.sampled_from(decider.values if isinstance(decider, ChoiceParameter) else (True, False)))
            parameter = parameter.model_copy(update={"when": {name: value}})
        parameters[f"knob-{index}"] = parameter
    numeric: list[str] = [name for name, p in parameters.items() if isinstance(p, IntParameter | FloatParameter)]
    rules = []
    for _ in range(draw(st.integers(0, 2))):
        one, other = draw(st.lists(st.sampled_from(numeric), min_size=2, max_size=2, unique=True))
        factor = draw(st.sampled_from(["", " * 2", " * 0.5"]))
        rules.append(Rule.parse(f"{one} {draw(st.sampled_from(['<=', '>', '!=']))} {other}{factor}"))
    return SearchSpace(parameters, tuple(rules))
