"""The command `reput`.

`root` imports the module of a noun (`topic`, `group`, `store`, `dlq`, ...) when it is used, `main` runs it, and
`failures` makes exit codes of errors. Shared: `options`, `connection`, `completion` (names from the broker),
`positions`, `preview` (dry runs and questions), `output` (tables), `rendering` (messages), `user_store` (users at
brokers or in a file), `examples` (of the help). `line` puts options behind their command, and `mistakes` guesses what a
line that is refused was meant to be. `conf` is the folder of that name at the top.
"""
