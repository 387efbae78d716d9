"""Space files: what a study searches, on which engine, under which traffic and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from optimizer.config.aims import VerdictSection, check_aims
from optimizer.config.baseline import ServeCommand, parse_serve_command
from optimizer.config.flag_tables import STATIC_TABLES, FlagTables
from optimizer.config.models import ModelSource, package_folder, resolve_model
from optimizer.config.named_file import built_in_names, find_file
from optimizer.config.problems import input_error, nearest
from optimizer.config.search_options import share_of
from optimizer.config.secret_names import is_secret_setting, is_secret_variable
from optimizer.config.yaml_reader import read_yaml
from optimizer.core.engine_config import FlagValue, canonical_flag
from optimizer.core.errors import InputError
from optimizer.core.samplers import DEFAULT_SAMPLER, SAMPLERS
from optimizer.load import Workload
from optimizer.load.sources import FOLDER
from optimizer.objectives import OBJECTIVES, Slo, check_slos, parse_slo
from optimizer.search_spaces import (
    FieldProblem,
    Parameter,
    Rule,
    SearchSpace,
    denied_reason,
    denied_variable_reason,
    gaming_reason,
    leaf_flags,
    merge_flags,
    overlap,
)

MEMORY_FLAG = "gpu-memory-utilization"
MINIMUM_TRIALS = 2


class EngineSection(BaseModel):
    """How every engine of the study is launched, whatever the proposal."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Literal["vllm", "simulated", "external"] = Field(
        default="vllm",
        description="Which adapter launches the engine; external: none, and the command of --evaluator measures.",
    )
    device: Literal["gpu", "cpu"] = Field(default="gpu", description="What the engine computes on.")
    memory_gib: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Memory for the engine in GiB where neither a parameter nor a fixed flag sets it; device cpu only, "
        "where vLLM's own default claims nearly all memory of the host.",
    )
    flags: dict[str, JsonValue] = Field(default_factory=dict, description="vLLM flags that every engine gets.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment on top of the inherited one.")
    warm_start: bool = Field(
        default=False, description="Keep a process that has imported vLLM and fork each engine from it."
    )
    pin_cpus: bool = Field(default=False, description="Run engine and load generator on different cores.")
    start_timeout_s: float = Field(
        default=900.0, gt=0, allow_inf_nan=False, description="Longest time from launch to ready, in seconds."
    )
    hang_after_s: float = Field(
        default=30.0,
        gt=0,
        allow_inf_nan=False,
        description="An engine that yields no token for so long while requests run hangs, in seconds; one that starts "
        "may neither log anything nor compute for twice as long.",
    )

    @field_validator("flags", mode="before")
    @classmethod
    def _allowed_flags(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        for name, setting in value.items():
            reason = denied_reason(str(name)) or gaming_reason(str(name), setting)
            if reason is not None:
                raise FieldProblem(str(name), f"this flag may not be set: {reason}")
            if is_secret_setting(str(name)):
                raise FieldProblem(str(name), "this flag holds a secret: set it in the shell, it is never recorded")
            if setting is None:
                raise FieldProblem(str(name), "has no value; write true or false for a plain flag")
        return {canonical_flag(str(name)): setting for name, setting in value.items()}

    @field_validator("env", mode="before")
    @classmethod
    def _allowed_variables(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        for name, content in value.items():
            if is_secret_variable(str(name), str(content)):
                raise FieldProblem(
                    str(name),
                    "looks like a secret: set it in the shell; the engine inherits it, and no record holds it",
                )
            reason = denied_variable_reason(str(name))
            if reason is not None:
                raise FieldProblem(str(name), f"may not be set: {reason}")
            if isinstance(content, bool) or not isinstance(content, str | int | float):
                raise FieldProblem(str(name), f"{content!r} must be text; put quotes around it")
        return {name: str(content) for name, content in value.items()}

    @model_validator(mode="after")
    def _memory_on_cpu(self) -> Self:
        if self.memory_gib is not None and self.device != "cpu":
            raise FieldProblem(
                "memory_gib", f"{self.memory_gib:g} is for `device: cpu`; on a gpu set flags.{MEMORY_FLAG}"
            )
        return self


class SpaceFile(BaseModel):
    """One space file, checked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$",
        max_length=60,
        description="Small letters, digits, dots, dashes; the study is called so unless told otherwise.",
    )
    description: str = Field(default="", description="What the space is for, in a sentence.")
    model: str = Field(min_length=1, description="Bundled shape, local directory (relative to this file), or hub id.")
    engine: EngineSection = Field(default_factory=EngineSection, description="How every engine is launched.")
    parameters: dict[str, Parameter] = Field(min_length=1, description="What is searched, by name.")
    rules: tuple[str, ...] = Field(default=(), description="Comparisons that every proposal meets.")
    workload: Workload = Field(description="The traffic under which is measured.")
    objective: str = Field(default="throughput", description="What is driven up or down.")
    slos: tuple[str, ...] = Field(default=(), description="Limits, such as p99_e2e_ms=800 or p99_e2e<=1.0x.")
    verdict: VerdictSection = Field(default_factory=VerdictSection, description="How sure a verdict must be.")
    baseline: str | None = Field(default=None, description="The serve command in use today.")
    trials: int = Field(
        default=20,
        strict=True,
        ge=MINIMUM_TRIALS,
        description="Trials of a study; baseline and defaults are the first two.",
    )
    sampler: str = Field(default=DEFAULT_SAMPLER, description="Which search strategy proposes.")
    stop_below_gain: str | None = Field(
        default=None, description="End when less than this share of the best is expected of a trial, such as `1%`."
    )
    _origin: str = PrivateAttr(default="space")
    _folder: Path | None = PrivateAttr(default=None)

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, value: str) -> str:
        if value not in OBJECTIVES:
            raise ValueError(
                f"{value!r} is not known{nearest(value, list(OBJECTIVES))}; allowed: {', '.join(OBJECTIVES)}"
            )
        return value

    @field_validator("sampler")
    @classmethod
    def _known_sampler(cls, value: str) -> str:
        if value not in SAMPLERS:
            raise ValueError(f"{value!r} is not known{nearest(value, list(SAMPLERS))}; allowed: {', '.join(SAMPLERS)}")
        return value

    @field_validator("stop_below_gain")
    @classmethod
    def _a_share(cls, value: str | None) -> str | None:
        if value is not None and share_of(value) is None:
            raise ValueError(f"{value!r} is no share between 0 % and 100 %; write it as 1% or 0.5%")
        return value

    @property
    def least_gain(self) -> float | None:
        """What a trial must be expected to bring over the best, as a share of it; None asks for nothing."""
        return None if self.stop_below_gain is None else share_of(self.stop_below_gain)

    @field_validator("parameters", mode="before")
    @classmethod
    def _plain_names(cls, value: object) -> object:
        for name in value if isinstance(value, dict) else ():
            if not str(name).replace("-", "").replace("_", "").replace(".", "").isalnum():
                raise FieldProblem(str(name), "a name has letters, digits, dashes, dots and underscores only")
        return value

    @property
    def origin(self) -> str:
        """The file, as messages call it."""
        return self._origin

    @property
    def folder(self) -> Path | None:
        """Where the file lies; relative model paths begin there."""
        return self._folder

    @classmethod
    def from_data(cls, data: dict[str, object], *, origin: str, folder: Path | None = None) -> SpaceFile:
        """Checks what a file holds, down to rules, limits, baseline and model.

        Raises:
            InputError: With file, key and value of everything that is wrong with the shape, or of the first thing
                that does not fit together.
        """
        try:
            space = cls.model_validate(data, context={FOLDER: folder})
        except ValidationError as error:
            raise input_error(error, model=cls, data=data, origin=origin) from None
        space._origin, space._folder = origin, folder
        searched = space.search_space()
        space._check_fixed_flags(searched)
        space._check_rules(searched)
        check_aims(OBJECTIVES[space.objective], space.parsed_slos(), space.workload, origin=f"{origin}: objective")
        space.parsed_baseline()
        space.model_source()
        return space

    def search_space(self) -> SearchSpace:
        """The parameters and rules as the search uses them."""
        rules = []
        for index, text in enumerate(self.rules):
            try:
                rules.append(Rule.parse(text))
            except InputError as error:
                raise InputError(f"{self.origin}: rules.{index}: {error.message}", hint=error.hint) from None
        try:
            return SearchSpace(self.parameters, tuple(rules))
        except InputError as error:
            raise InputError(f"{self.origin}: {error.message}", hint=error.hint) from None

    def fixed_flags(self) -> dict[str, FlagValue]:
        """The engine's fixed flags, dotted ones merged."""
        return merge_flags({}, {name: value for name, value in self.engine.flags.items() if value is not None})

    def parsed_slos(self) -> tuple[Slo, ...]:
        """The limits."""
        slos = [parse_slo(text, origin=f"{self.origin}: slos.{index}") for index, text in enumerate(self.slos)]
        check_slos(slos, origin=f"{self.origin}: slos")
        return tuple(slos)

    def parsed_baseline(self, tables: FlagTables = STATIC_TABLES) -> ServeCommand | None:
        """The serve command in use today, or None when the space names none."""
        if self.baseline is None:
            return None
        return parse_serve_command(self.baseline, origin=f"{self.origin}: baseline", tables=tables)

    def model_source(self) -> ModelSource:
        """Where the space's own model lies."""
        return resolve_model(self.model, origin=f"{self.origin}: model", base_dir=self.folder)

    def _check_fixed_flags(self, searched: SearchSpace) -> None:
        for fixed in leaf_flags(self.fixed_flags()):
            for name, parameter in searched.parameters.items():
                if any(overlap(fixed, flag) for flag in parameter.flag_names(name)):
                    raise InputError(
                        f"{self.origin}: engine.flags.{fixed}: parameter {name} searches this flag",
                        hint="fix it or search it, not both",
                    )

    def _check_rules(self, searched: SearchSpace) -> None:
        """A rule about a flag that nothing sets would hold for ever, and is a slip of the pen."""
        known = [flag for name, parameter in searched.parameters.items() for flag in parameter.flag_names(name)]
        known += leaf_flags(self.fixed_flags())
        if self.engine.memory_gib is not None:
            known.append(MEMORY_FLAG)
        for index, rule in enumerate(searched.rules):
            for flag in rule.flags:
                if flag not in known:
                    raise InputError(
                        f"{self.origin}: rules.{index}: nothing in the space sets the flag {flag!r}"
                        f"{nearest(flag, known)}",
                        hint=f"flags that are set: {', '.join(known)}",
                    )


def built_in_spaces() -> list[SpaceFile]:
    """The spaces that come with the package, by name."""
    return [load_space(name) for name in built_in_names(_built_in())]


def load_space(name_or_path: str) -> SpaceFile:
    """Reads a space by the name of a built-in one or the path of a YAML file.

    Raises:
        InputError: There is no such space, or its file is wrong.
    """
    path, origin = find_file(name_or_path, _built_in(), "space")
    return SpaceFile.from_data(read_yaml(path, origin=origin), origin=origin, folder=path.parent)


def _built_in() -> Path:
    return package_folder("builtin")
