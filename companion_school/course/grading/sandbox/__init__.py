"""The wall that students' code runs behind: `parent` asks, `child` runs, `confine` takes rights away."""
