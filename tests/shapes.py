"""The runtime checker behind the companion's shape annotations, as mypy reads them: an int will do for a float."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
