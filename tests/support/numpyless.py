"""A process where NumPy cannot be imported: `python numpyless.py serve ...` is `reput serve ...`, FILE.py a program."""

from __future__ import annotations

import runpy
import sys


class NoNumPy:
    """Finds every module but NumPy."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Refuse NumPy; say nothing of anything else."""
        if name.split(".")[0] == "numpy":
            raise ModuleNotFoundError("No module named 'numpy'", name="numpy")


def main() -> None:
    """Run the command or the program without NumPy."""
    sys.meta_path.insert(0, NoNumPy())
    if sys.argv[1].endswith(".py"):
        del sys.argv[0]
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    from reput_cli.main import main as reput

    reput()


if __name__ == "__main__":
    main()
