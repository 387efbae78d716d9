"""A search space: its parameters and rules, and how a proposal becomes the engine's flags and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from optimizer.core.engine_config import EngineConfig, FlagValue, JsonValue
from optimizer.core.errors import InputError
from optimizer.core.record import ParamValue
from optimizer.search_spaces.conditions import check_parameters
from optimizer.search_spaces.flag_paths import merge_flags, overlap, set_flag
from optimizer.search_spaces.parameter import Parameter
from optimizer.search_spaces.parameter_base import Unread
from optimizer.search_spaces.rules import BUILT_IN_RULES, Rule
from optimizer.search_spaces.values import same_value


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What a study may try.

    Attributes:
        parameters: Name to parameter, in the order they were declared.
        rules: The space's own rules; vLLM's (`BUILT_IN_RULES`) hold besides.

    Raises:
        InputError: A condition names an unknown parameter or value or runs in a circle, two parameters set the same
            flag at once, or a flag may not be searched.
    """

    parameters: Mapping[str, Parameter]
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))
        check_parameters(self.parameters)

    def active(self, params: Mapping[str, ParamValue]) -> tuple[str, ...]:
        """The parameters that exist under these params: their conditions hold, and those of what they depend on."""
        return tuple(name for name in self.parameters if self._exists(name, params))

    def existing(self, params: Mapping[str, ParamValue]) -> dict[str, ParamValue]:
        """Those of the params that exist beside the others."""
        return {name: params[name] for name in self.active(params) if name in params}

    def flags(self, params: Mapping[str, ParamValue], *, device_memory_bytes: int | None) -> dict[str, FlagValue]:
        """The flags that the params set, dotted ones merged into one JSON object per flag.

        A parameter that is not given, or does not exist under these params, sets nothing.

        Raises:
            InputError: A parameter is unknown or its value is not in its range; or a value in GiB meets a device
                whose memory is not known.
        """
        self.check(params)
        flags: dict[str, FlagValue] = {}
        for name, value in self.existing(params).items():
            settings = self.parameters[name].to_flags(name, value, device_memory_bytes=device_memory_bytes)
            for flag, setting in settings.items():
                set_flag(flags, flag, setting)
        return flags

    def check(self, params: Mapping[str, ParamValue]) -> None:
        """Raises InputError for a parameter that the space does not hold, or a value outside its range."""
        for name, value in params.items():
            parameter = self.parameters.get(name)
            if parameter is None:
                raise InputError(
                    f"parameter {name} = {value!r} is not in the space", hint=f"it holds {', '.join(self.parameters)}"
                )
            if not parameter.contains(value):
                raise InputError(
                    f"parameter {name} = {value!r} is not in its range", hint=f"allowed: {parameter.domain}"
                )

    def resolve(
        self,
        params: Mapping[str, ParamValue],
        *,
        engine: str,
        model: str,
        fixed_flags: Mapping[str, FlagValue],
        env: Mapping[str, str],
        device_memory_bytes: int | None,
    ) -> EngineConfig:
        """The engine to launch: the fixed flags, with those of the params on top.

        Raises:
            InputError: As `flags`; or a dotted flag meets a fixed flag that is no JSON object.
        """
        flags = merge_flags(fixed_flags, self.flags(params, device_memory_bytes=device_memory_bytes))
        return EngineConfig(engine=engine, model=model, flags=flags, env=env)

    def broken_rules(self, flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
        """A sentence with the values for each rule, of vLLM and of the space, that these flags break."""
        sentences = (rule.broken_by(flags) for rule in (*BUILT_IN_RULES, *self.rules))
        return tuple(dict.fromkeys(sentence for sentence in sentences if sentence is not None))

    def params_from_flags(
        self, flags: Mapping[str, FlagValue], *, device_memory_bytes: int | None
    ) -> tuple[dict[str, ParamValue], tuple[str, ...]]:
        """Reads a user's flags as params: the reverse of `flags`.

        Returns:
            The params that the flags set to a value of the space; and the names of the parameters whose flag is set
            to something else, or although the parameter does not exist beside the other flags. A choice that sets no
            flag (such as "no speculation") is read where none is set.
        """
        merged = merge_flags({}, flags)
        readings = {
            name: parameter.read(name, merged, device_memory_bytes=device_memory_bytes)
            for name, parameter in self.parameters.items()
        }
        read = {name: value for name, value in readings.items() if not isinstance(value, Unread)}
        existing = self.active(read)
        covered = [flag for name in existing for flag in self.parameters[name].flag_names(name)]
        outside = tuple(
            name
            for name, value in readings.items()
            if (value is Unread.OUTSIDE and name in existing)
            or (value is not Unread.ABSENT and name not in existing and not self._covers(covered, name))
        )
        return {name: read[name] for name in existing if name in read}, outside

    def as_dict(self) -> dict[str, JsonValue]:
        """The space as plain JSON, for the identity of a study; help texts left out."""
        return {
            "parameters": {
                name: parameter.model_dump(mode="json", exclude={"help"}, exclude_defaults=True)
                for name, parameter in self.parameters.items()
            },
            "rules": [rule.text for rule in self.rules],
        }

    def _exists(self, name: str, params: Mapping[str, ParamValue]) -> bool:
        return all(
            other in params and same_value(params[other], value) and self._exists(other, params)
            for other, value in self.parameters[name].when.items()
        )

    def _covers(self, flags: list[str], name: str) -> bool:
        """Whether parameters that own these flags speak for all flags of the named one."""
        return all(any(overlap(flag, own) for flag in flags) for own in self.parameters[name].flag_names(name))
