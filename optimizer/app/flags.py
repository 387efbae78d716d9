"""The flags of the engine that is there, and a study's configuration held against them."""

from __future__ import annotations

from collections.abc import Callable

from optimizer.app.engine_choice import SOMEBODY_ELSES, EngineChoice, choose_engine
from optimizer.app.request import RunRequest, study_config
from optimizer.config import StudyConfig, load_space
from optimizer.config.flag_check import FlagChecker, refused
from optimizer.config.study_flags import study_flag_problems
from optimizer.engine.simulated.catalogue import simulated_catalogue
from optimizer.engine.vllm.catalogue_cache import load_catalogue


def flag_checker(engine: EngineChoice, *, notice: Callable[[str], None]) -> FlagChecker:
    """Knows every flag of an engine. The first time for a vLLM this takes as long as importing it.

    Args:
        engine: The engine.
        notice: Is told what takes a while, and what could not be kept.

    Raises:
        HostError: The flags of this vLLM cannot be read.
    """
    if engine.vllm is None:
        return FlagChecker(simulated_catalogue(engine.version), "the simulated engine")
    return FlagChecker(load_catalogue(engine.vllm, notice=notice), f"vLLM {engine.version}")


def checked_config(request: RunRequest, engine: EngineChoice, *, notice: Callable[[str], None]) -> StudyConfig:
    """The study's configuration, read with the words that this engine knows.

    What somebody else's engine knows cannot be told, unless a vLLM of the same version is here: --engine-python.

    Raises:
        InputError: A flag, a value or a variable is not one of this engine's; every one is named.
        HostError: The flags of this vLLM cannot be read.
    """
    if engine is SOMEBODY_ELSES and request.engine_python is None:
        return study_config(request)
    known = choose_engine("vllm", request.engine_python) if engine is SOMEBODY_ELSES else engine
    checker = flag_checker(known, notice=notice)
    space = load_space(request.space)
    problems = study_flag_problems(checker, space, baseline=request.baseline, set_flags=request.set_flags)
    if problems:
        raise refused(problems)
    return study_config(request, checker.tables)
