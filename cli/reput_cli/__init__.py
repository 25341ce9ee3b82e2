"""The command `reput`.

`root` imports the module of a noun (`topic`, `group`, `dlq/`, `store/`, ...) when it is used, `main` runs it, and
`failures` makes exit codes of errors. Shared: `options`, `positions`, `output` (tables), `rendering` (messages).
"""
