"""What a model is, as frozen values that travel as JSON, and the published systems written as such values.

groups       small groups of a configuration, for long texts
model        the configuration of a model, and its groups
presets      published systems, by name
"""
