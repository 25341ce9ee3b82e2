"""The tables of a broker, kept in JSON files under `config/`.

`topics`, `offsets` (with `offset_journal`) and `subscription_groups` are tables; `tables` has all of them together,
with those that are small. `config_file` reads and replaces a file, `table_saver` saves a table without stopping the
event loop. `topic_access` finds the topic that a request names.
"""
