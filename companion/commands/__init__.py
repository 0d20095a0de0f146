"""The commands of `companion`, a file each: its flags beside its deed."""
