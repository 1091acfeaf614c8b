"""shoal: streaming, continual, federated clustering.

The names of `__all__` are imported on first use: `import shoal` itself loads nothing else, not even
NumPy, so the processes on small machines pay only for what they run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal import errors
    from shoal.config.contract import Contract, load_contract
    from shoal.estimators.base import NotFittedError, StoppedEarly
    from shoal.estimators.cluster_tree import ClusterTree
    from shoal.estimators.density_tree import DensityTree
    from shoal.estimators.fcac import FCAC
    from shoal.estimators.federated import (
        FederatedDBSCAN,
        FederatedFCM,
        FederatedGMM,
        FederatedKMeans,
        FederatedSpectral,
    )
    from shoal.estimators.rounds import KFED, MUFC
    from shoal.estimators.states import States
    from shoal.estimators.tsk import FederatedTSK
    from shoal.protocol.messages import Snapshot, Update
    from shoal.protocol.readings import Reading

__version__ = "0.2.0"
__all__ = [
    "FCAC",
    "KFED",
    "MUFC",
    "ClusterTree",
    "Contract",
    "DensityTree",
    "FederatedDBSCAN",
    "FederatedFCM",
    "FederatedGMM",
    "FederatedKMeans",
    "FederatedSpectral",
    "FederatedTSK",
    "NotFittedError",
    "Reading",
    "Snapshot",
    "States",
    "StoppedEarly",
    "Update",
    "__version__",
    "errors",
    "load_contract",
]

_MODULES = {
    "shoal.config.contract": ("Contract", "load_contract"),
    "shoal.estimators.federated": (
        "FederatedDBSCAN",
        "FederatedFCM",
        "FederatedGMM",
        "FederatedKMeans",
        "FederatedSpectral",
    ),
    "shoal.estimators.rounds": ("KFED", "MUFC"),
    "shoal.estimators.base": ("NotFittedError", "StoppedEarly"),
    "shoal.estimators.cluster_tree": ("ClusterTree",),
    "shoal.estimators.density_tree": ("DensityTree",),
    "shoal.estimators.fcac": ("FCAC",),
    "shoal.estimators.states": ("States",),
    "shoal.estimators.tsk": ("FederatedTSK",),
    "shoal.protocol.messages": ("Snapshot", "Update"),
    "shoal.protocol.readings": ("Reading",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

# a type checker reads the imports above, and reports a name that is not among them
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "errors":
            return import_module("shoal.errors")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'shoal' has no attribute {name!r}")
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
