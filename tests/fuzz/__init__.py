"""Everything that comes from outside, made wrong at random: see `oracle` for what may become of it."""
