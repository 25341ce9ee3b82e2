"""The command `reput`.

`root` finds the module of a noun (`topic`, `group`, `dlq/`, `store/`, ...) when it is used; `main` runs it and
`failures` turns what it raises into lines and an exit code. `options`, `positions`, `output` and `rendering` are
shared: flags, START:END, tables, and messages as text.
"""
