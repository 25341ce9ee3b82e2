"""The real broker in a process where NumPy cannot be imported. Usage: `python numpyless_broker.py serve ...`."""

from __future__ import annotations

import sys


class NoNumPy:
    """Finds every module but NumPy."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Refuse NumPy; say nothing of anything else."""
        if name.split(".")[0] == "numpy":
            raise ModuleNotFoundError("the broker has no use for NumPy", name=name)


def main() -> None:
    """Run the command without NumPy."""
    sys.meta_path.insert(0, NoNumPy())  # type: ignore[arg-type]
    from reput_cli.main import main as reput

    reput()


if __name__ == "__main__":
    main()
