"""The settings. People write TOML, programs write JSON, and any key can be set from the command line.

This room imports neither torch nor anything else of sbpipe but its errors, so `--help` is instant.
"""

from sbpipe.config.effects import warnings_of
from sbpipe.config.job import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    ScheduleConfig,
    TrainConfig,
    ViewConfig,
)
from sbpipe.config.parser import flatten, parse_assignment, read_tables, read_toml, resolve
from sbpipe.config.pipeline import LinkConfig, SelectionConfig, SelectorConfig, SyncConfig, TrackersConfig
from sbpipe.config.rules import check_together, least_staleness
from sbpipe.config.schema import Config, known_keys
from sbpipe.config.setting import OWN
from sbpipe.config.traits import TRAITS, KeepBounds, Traits, keeps_all
from sbpipe.config.writer import (
    BUDGETS,
    budget,
    digest,
    from_dict,
    is_local,
    to_dict,
    to_json,
    to_toml,
    toml_value,
)

__all__ = [
    "BUDGETS",
    "OWN",
    "TRAITS",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "EvalConfig",
    "KeepBounds",
    "LinkConfig",
    "LossConfig",
    "ModelConfig",
    "OptimConfig",
    "ScheduleConfig",
    "SelectionConfig",
    "SelectorConfig",
    "SyncConfig",
    "TrackersConfig",
    "TrainConfig",
    "Traits",
    "ViewConfig",
    "budget",
    "check_together",
    "digest",
    "flatten",
    "from_dict",
    "is_local",
    "keeps_all",
    "known_keys",
    "least_staleness",
    "parse_assignment",
    "read_tables",
    "read_toml",
    "resolve",
    "to_dict",
    "to_json",
    "to_toml",
    "toml_value",
    "warnings_of",
]
