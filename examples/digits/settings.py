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

    def __post_init__(self) -> None:
        _require("test_fraction", self.test_fraction, 0 < self.test_fraction < 1, "between 0 and 1")
        _require("shift", self.shift, self.shift >= 0, "at least 0")
        _require("examples", self.examples, self.examples == 0 or self.examples >= 100, "0, or at least 100")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The sizes of the network."""

    channels: int
    hidden: int
    dropout: float

    def __post_init__(self) -> None:
        _require("channels", self.channels, self.channels >= 1, "at least 1")
        _require("hidden", self.hidden, self.hidden >= 1, "at least 1")
        _require("dropout", self.dropout, 0 <= self.dropout < 1, "at least 0 and less than 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How the network is trained, and what counts as success."""

    seed: int
    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    required_accuracy: float

    def __post_init__(self) -> None:
        _require("epochs", self.epochs, self.epochs >= 1, "at least 1")
        _require("batch_size", self.batch_size, self.batch_size >= 1, "at least 1")
        _require("learning_rate", self.learning_rate, self.learning_rate > 0, "more than 0")


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


def _require(name: str, value: object, is_right: bool, text: str) -> None:
    if not is_right:
        raise SettingsError(f"{name} should be {text}, and is {value}")


def _names(names: Any) -> str:
    return ", ".join(sorted(names))
