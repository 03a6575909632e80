"""The methods by name, and a user's own as `my_module:MyMethod`."""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from benchmark.config import from_plain, nearest, quoted
from benchmark.errors import ConfigError
from benchmark.methods.cbafed import CBAFed
from benchmark.methods.central import UDA, FixMatch, MeanTeacher, MixMatch, PiModel, PseudoLabeling, ReMixMatch
from benchmark.methods.data_sharing import DataSharing
from benchmark.methods.easgd import EASGD
from benchmark.methods.fed_consist import FedConsist
from benchmark.methods.feddb import FedDB
from benchmark.methods.feddure import FedDure
from benchmark.methods.feddyn import FedDyn
from benchmark.methods.fedirm import FedIRM
from benchmark.methods.fedmatch import FedMatch
from benchmark.methods.fedprox_fixmatch import FedProxFixMatch
from benchmark.methods.fedswitch import FedSwitch
from benchmark.methods.flfl import FL2
from benchmark.methods.heterofl import HeteroFL
from benchmark.methods.lg_fedavg import LGFedAvg
from benchmark.methods.overlap_sgd import OverlapSGD
from benchmark.methods.proxyfl import ProxyFL
from benchmark.methods.rscfed import RSCFed
from benchmark.methods.sage import SAGE, FedLabel, FixMatchGPL, FixMatchLPL, FlexMatchLPL
from benchmark.methods.semifl import SemiFL
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.ssfl import SSFL
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.methods.ts_client_ema import TSClientEMA
from benchmark.methods.ts_server_ema import TSServerEMA

METHODS: Mapping[str, type[Any]] = {
    "cbafed": CBAFed,
    "data_sharing": DataSharing,
    "easgd": EASGD,
    "fed_consist": FedConsist,
    "feddb": FedDB,
    "feddure": FedDure,
    "fedirm": FedIRM,
    "feddyn": FedDyn,
    "fedlabel": FedLabel,
    "fedmatch": FedMatch,
    "fedprox_fixmatch": FedProxFixMatch,
    "fedswitch": FedSwitch,
    "fixmatch": FixMatch,
    "fixmatch_gpl": FixMatchGPL,
    "fixmatch_lpl": FixMatchLPL,
    "flexmatch_lpl": FlexMatchLPL,
    "flfl": FL2,
    "heterofl": HeteroFL,
    "lg_fedavg": LGFedAvg,
    "mean_teacher": MeanTeacher,
    "mixmatch": MixMatch,
    "overlap_sgd": OverlapSGD,
    "pi_model": PiModel,
    "proxyfl": ProxyFL,
    "pseudo_labeling": PseudoLabeling,
    "remixmatch": ReMixMatch,
    "rscfed": RSCFed,
    "sage": SAGE,
    "semifl": SemiFL,
    "server_only": ServerOnly,
    "ssfl": SSFL,
    "supervised_fl": SupervisedFL,
    "ts_client_ema": TSClientEMA,
    "ts_server_ema": TSServerEMA,
    "uda": UDA,
}

SETTINGS = {  # names of methods in papers and grids that are a setting of one of the above
    **{"crl": "ssfl", "fedavg": "ssfl", "grouping": "ssfl --method.averaging grouping"},
    **{"supervised": "supervised_fl", "central_fixmatch": "fixmatch"},
}


def method_class(name: str) -> type:
    """The class of that name. Raises ConfigError that names the nearest right one, or what is wrong with a module."""
    if name in METHODS:
        return METHODS[name]
    if ":" not in name:
        hint = f"type --method {SETTINGS[name]}" if name in SETTINGS else nearest(name, METHODS)
        raise ConfigError(f"method.kind: {quoted(name)} is not a method; {hint}, or module:Class for your own")
    module, _, attribute = name.partition(":")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever the file does
        raise ConfigError(f"method.kind: {quoted(name)} cannot be imported ({error!r})") from None
    if not isinstance(cls, type) or not is_dataclass(cls):
        raise ConfigError(
            f"method.kind: {name!r} is not a dataclass; write @dataclass(frozen=True, kw_only=True) above it"
        )
    missing = [part for part in ("init", "round", "models", "check", "needs") if not hasattr(cls, part)]
    if missing:
        raise ConfigError(f"method.kind: {name!r} is not a method; add {', '.join(missing)}")
    return cls


def check_known(name: object) -> None:
    """Raise ConfigError for a record's method that is neither the suite's nor imported. A method of the user's own
    is imported where she named it on the command line; a record's name imports nothing."""
    if isinstance(name, str) and ":" in name and name.partition(":")[0] not in sys.modules:
        raise ConfigError(
            f"method.kind: {quoted(name)} is not a method of this suite, and a record's own code is not run; "
            f"if you trust it, type --method {quoted(name)[1:-1]}"
        )


def method_name(method: object) -> str:
    """The name that `method_class` finds this method's class under."""
    for name, cls in METHODS.items():
        if type(method) is cls:
            return name
    return f"{type(method).__module__}:{type(method).__qualname__}"


def read_method(raw: Any, path: str) -> Any:
    """A method from plain values: its name, or its table. The table has "kind" and the fields."""
    table = {"kind": raw} if isinstance(raw, str) else raw
    if not isinstance(table, Mapping) or not isinstance(table.get("kind"), str):
        raise ConfigError(
            f"{path}: {quoted(raw)} is not a method; choose {path}.kind from {', '.join(sorted(METHODS))}"
        )
    cls = method_class(table["kind"])
    return from_plain(cls, {key: value for key, value in table.items() if key != "kind"}, path)
