"""What a study is: space files, pasted serve commands, and the overrides of the command line."""

from optimizer.config.baseline import ServeCommand, parse_serve_command
from optimizer.config.identity import identity_difference
from optimizer.config.models import ModelSource, bundled_models, resolve_model
from optimizer.config.space_file import EngineSection, SpaceFile, built_in_spaces, load_space
from optimizer.config.study_config import StudyConfig, build_study_config
from optimizer.config.workload_file import built_in_workloads, load_workload

__all__ = [
    "EngineSection",
    "ModelSource",
    "ServeCommand",
    "SpaceFile",
    "StudyConfig",
    "build_study_config",
    "built_in_spaces",
    "built_in_workloads",
    "bundled_models",
    "identity_difference",
    "load_space",
    "load_workload",
    "parse_serve_command",
    "resolve_model",
]
