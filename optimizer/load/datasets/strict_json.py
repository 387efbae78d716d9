"""JSON as the standard has it: without NaN and Infinity, which Python reads by default."""

from __future__ import annotations

import json


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


DECODER = json.JSONDecoder(parse_constant=_refuse)


def decode_line(line: bytes) -> object:
    """The value on a line.

    Raises:
        ValueError: It is none; the message says why.
    """
    try:
        return DECODER.decode(line.decode("utf-8").strip())
    except UnicodeDecodeError as error:
        raise ValueError(f"this is not UTF-8 text (byte {error.start + 1} of the line)") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"this is not JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise ValueError("this JSON is nested too deeply") from None
