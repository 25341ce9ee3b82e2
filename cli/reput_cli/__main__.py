"""Run `reput` by `python -m reput_cli`."""

from reput_cli import main

if __name__ == "__main__":
    main.main()
