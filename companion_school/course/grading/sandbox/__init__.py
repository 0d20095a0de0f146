"""The sandbox for students' code: `parent` sends cases, `child` runs the code, and `wall` takes away its rights."""
