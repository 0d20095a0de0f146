"""`--config FILE`: read flags from a YAML or JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from companion.ground.fields import shown, why
from companion.ground.reading import read_text


class _Plain(yaml.SafeLoader):
    """A YAML loader that rejects duplicate keys; otherwise, all but the last value of a key would be lost silently."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := [key for i, key in enumerate(keys) if key in keys[:i]]:
            raise ValueError(f"the setting {shown(twice[0])} occurs twice")
        return super().construct_mapping(node, deep=deep)


def read_settings(name: str) -> dict[str, Any]:
    """Return the settings in a YAML or JSON file, keyed by name.

    Raises:
        ValueError: If the path does not exist or is not a file, or if its content is not text, not YAML, or not a
            mapping from setting names to values.
    """
    asked, path = f"--config {shown(name)}", Path(name)
    try:
        if not path.exists():
            raise ValueError(f"{asked}: expected a file, found none")
        if not path.is_file():
            raise ValueError(f"{asked}: expected a file, found something else")
        text = read_text(path)
    except OSError as error:
        raise ValueError(f"{asked}: cannot be read ({error.strerror})") from None
    except UnicodeError as error:
        raise ValueError(f"{asked}: expected a file in YAML or JSON, got one that is not text ({why(error)})") from None
    try:
        given = yaml.load(text, _Plain)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{asked}: expected a file in YAML or JSON ({why(error)})") from None
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise ValueError(f"{asked}: expected flag names with values, got {shown(given)}")
    return dict(given)
