"""The hyperparameters: a TOML file read into dataclasses, with every name and type checked."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


class SettingsError(Exception):
    """The settings file has a name or value that the example cannot use."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """How the images are split and augmented."""

    seed: int
    test_fraction: float
    shift: int
    examples: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The sizes of the network."""

    channels: int
    hidden: int
    dropout: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How the network is trained, and what counts as success."""

    seed: int
    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    required_accuracy: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All hyperparameters of one run."""

    data: DataSettings
    model: ModelSettings
    training: TrainingSettings


def load_settings(path: Path) -> Settings:
    """Reads the settings of one run.

    Args:
      path: a TOML file with the tables `data`, `model` and `training`.

    Raises:
      SettingsError: the file cannot be read, or a name or type in it is wrong.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error
    return _build(Settings, content, str(path))


def _build(cls: type[T], content: dict[str, Any], where: str) -> T:
    types = get_type_hints(cls)
    if unknown := content.keys() - types.keys():
        raise SettingsError(f"{where}: unknown {_names(unknown)}; the names are {_names(types)}")
    if missing := types.keys() - content.keys():
        raise SettingsError(f"{where}: missing {_names(missing)}")
    return cls(**{name: _convert(types[name], value, f"{where}: {name}") for name, value in content.items()})


def _convert(cls: type, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(cls) and isinstance(value, dict):
        return _build(cls, value, where)
    if cls is float and type(value) is int:
        return float(value)
    if type(value) is not cls:
        raise SettingsError(f"{where} should be {cls.__name__}, and is {value!r}")
    return value


def _names(names: Any) -> str:
    return ", ".join(sorted(names))
