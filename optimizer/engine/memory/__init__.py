"""What an engine will take of its device's memory, told before it is launched, and corrected by what engines reported.

Formulae and their sources stand in `docs/memory-account.md`.
"""

from optimizer.engine.memory.account import MemoryAccount, MemoryPrediction, Range
from optimizer.engine.memory.calibration import Calibration, MemoryObservation
from optimizer.engine.memory.config_fields import CannotPredict
from optimizer.engine.memory.launch_sizes import CPU_KV_SPACE, Device
from optimizer.engine.memory.model_shape import ModelShape, read_model_shape

__all__ = [
    "CPU_KV_SPACE",
    "Calibration",
    "CannotPredict",
    "Device",
    "MemoryAccount",
    "MemoryObservation",
    "MemoryPrediction",
    "ModelShape",
    "Range",
    "read_model_shape",
]
