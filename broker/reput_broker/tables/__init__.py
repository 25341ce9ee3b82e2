"""The tables of a broker, kept in JSON files under `config/`.

`topics`, `offsets` (with `offset_journal`), `subscription_groups`, `message_request_modes` and `kv_config` are tables;
`tables` has them together. `config_file` reads and replaces a file, `table_saver` saves a table without stopping the
event loop. `topic_access` finds the topic that a request names.
"""
