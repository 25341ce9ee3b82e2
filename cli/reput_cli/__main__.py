"""`python -m reput_cli` is `reput`."""

from reput_cli.main import main

if __name__ == "__main__":
    main()
