"""The sandbox for students' code: `parent` sends cases, `child` runs the code, and `wall` isolates it."""
