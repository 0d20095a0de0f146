"""Every test runs with the companion's shape annotations checked: a tensor of another shape or type than its signature
says is an error here, while the package itself pays nothing for it."""

from jaxtyping import install_import_hook

install_import_hook("companion", "beartype.beartype")
