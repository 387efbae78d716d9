"""The flags of many settings, quickly: a search weighs thousands of them before it takes one."""

from __future__ import annotations

from collections.abc import Mapping

from optimizer.core.engine_config import FlagValue
from optimizer.core.record import ParamValue
from optimizer.search_spaces import SearchSpace, set_flag


class LaunchFlags:
    """Turns settings of a space into all flags of their launches.

    Values are not checked again: they come from the space.

    Args:
        space: The parameters.
        fixed_flags: What every launch has besides.
        device_memory_bytes: For parameters in GiB; None where the space has none.
    """

    def __init__(
        self, space: SearchSpace, fixed_flags: Mapping[str, FlagValue], *, device_memory_bytes: int | None
    ) -> None:
        self._space = space
        self._fixed = dict(fixed_flags)
        self._device_memory_bytes = device_memory_bytes
        self._known: dict[tuple[str, type, ParamValue], dict[str, FlagValue]] = {}

    def __call__(self, params: Mapping[str, ParamValue]) -> dict[str, FlagValue]:
        """The flags of a setting; parameters that do not exist in it set nothing.

        Raises:
            InputError: A value in GiB meets a device whose memory is not known.
        """
        flags = dict(self._fixed)
        for name in self._space.active(params):
            if name not in params:
                continue
            for flag, value in self._settings(name, params[name]).items():
                if "." in flag or isinstance(value, dict):
                    set_flag(flags, flag, value)
                else:
                    flags[flag] = value
        return flags

    def _settings(self, name: str, value: ParamValue) -> dict[str, FlagValue]:
        key = (name, type(value), value)
        if key not in self._known:
            parameter = self._space.parameters[name]
            self._known[key] = parameter.to_flags(name, value, device_memory_bytes=self._device_memory_bytes)
        return self._known[key]
