"""The configuration. `model` has `BrokerConfig`, whose sections are in `sections` and value types in `units`.

`options` gives the rows of both by their keys. `loading` reads a TOML file, the `environment` and flags, and applies a
reload. `description` lists options as people read them; `errors` reports every mistake at once.
"""
