"""The command `reput`.

`root` imports the module of a noun (`topic`, `group`, `dlq/`, `store/`, ...) when it is used, `main` runs it, and
`failures` makes exit codes of errors. Shared: `options`, `context_file`, `completion` (names from the broker),
`positions`, `output` (tables), `rendering` (messages). `conf` is the folder of that name at the top.
"""
