"""The configuration. `model` has `BrokerConfig`, its sections are in `sections`, and the types of their values in
`value_types`.

`options` gives the rows of both by their keys. `loading` reads a TOML file, the `environment` and flags, and applies a
reload. `description` lists options as people read them; `errors` reports every mistake at once.
"""
