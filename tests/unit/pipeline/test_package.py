"""What the job `package` packs is all that an executor's Python needs."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from reput_pipeline.jobs.run import run_job
from reput_protocol import kernel
from support.packed_for_spark import packed_file

_ON_AN_EXECUTOR = """
import sys
sys.path = [sys.argv[1], *(path for path in sys.path if "site-packages" not in path)]
import fastavro, google.protobuf, pandas, pyarrow
from reput_client.arrow import read_arrow
from reput_client.blocking.bulk import BulkReader
from reput_broker.tools.tables import offsets_in
from reput_protocol import kernel
print(kernel.FORM, kernel.__file__, pyarrow.__file__)
"""


def test_a_python_without_packages_has_all_of_them_from_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(packed_file(tmp_path)) as packed:
        packed.extractall(tmp_path / "reput")
    command = [sys.executable, "-I", "-S", "-c", _ON_AN_EXECUTOR, str(tmp_path / "reput")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    form, *files = ran.stdout.split()
    assert form == kernel.FORM
    assert all(file.startswith(str(tmp_path / "reput")) for file in files)
    assert not (tmp_path / "reput" / "pyspark").exists()


@pytest.mark.parametrize(
    ("to", "words"), [("packed.tar", "does not end in .zip"), ("no/packed.zip", "there is no directory")]
)
def test_a_wrong_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str, words: str) -> None:
    assert run_job("package", ["--to", str(tmp_path / to)]) == 2
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["argument"] == "--to"
    assert words in told["error"]
    assert not list(tmp_path.iterdir())


def test_without_arrow_it_is_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_job("package", ["--to", str(tmp_path / "packed.zip"), "--no-arrow"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["bytes"] < 24 << 20
    assert not {"pyarrow", "pandas", "numpy"} & set(told["packages"])
    assert {"reput_protocol", "reput_client", "reput_pipeline", "msgpack"} <= set(told["packages"])
