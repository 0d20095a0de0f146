"""Every test runs with the companion's shape annotations checked: a tensor of another shape or type than its signature
says is an error here, while the package itself pays nothing for it."""

from collections.abc import Iterator

import pytest
from jaxtyping import config, install_import_hook

install_import_hook("companion", "shapes.check")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """For tests of what the package itself says to a caller whose types are wrong, as it runs outside the tests."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
