"""An S3 server on this machine: moto's, as a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow.fs import FileSelector, FileType, LocalFileSystem, S3FileSystem, copy_files

from support.waiting import wait_until

BUCKET = "bucket"
_STARTED = re.compile(r"Running on http://127\.0\.0\.1:(\d+)")


class ObjectStore:
    """A server with one bucket."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.files = self.filesystem(port)
        """The bucket as a file system, whose paths start with its name."""
        self.files.create_dir(BUCKET)

    @staticmethod
    def environment(port: int) -> Mapping[str, str]:
        """The variables of a program that uses a server."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @staticmethod
    def filesystem(port: int) -> S3FileSystem:
        """A server as a file system."""
        return S3FileSystem(
            access_key="key",
            secret_key="secret",
            region="us-east-1",
            endpoint_override=f"http://127.0.0.1:{port}",
            allow_bucket_creation=True,
        )

    def upload(self, directory: Path, name: str) -> str:
        """Copy a directory into the bucket; return its URL."""
        copy_files(
            str(directory), f"{BUCKET}/{name}", source_filesystem=LocalFileSystem(), destination_filesystem=self.files
        )
        return f"s3://{BUCKET}/{name}"

    def names(self, below: str) -> list[str]:
        """The names of all objects below a name, without it."""
        root = f"{BUCKET}/{below}"
        found = self.files.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
        return sorted(info.path[len(root) + 1 :] for info in found if info.type == FileType.File)

    @contextmanager
    def checked_credentials(self) -> Iterator[None]:
        """Reject users that do not exist, which are all, while the block runs."""
        self._requests_without_check("0")
        try:
            yield
        finally:
            self._requests_without_check("inf")

    def _requests_without_check(self, count: str) -> None:
        url = f"http://127.0.0.1:{self.port}/moto-api/reset-auth"
        headers = {"Content-Type": "application/octet-stream"}
        with urllib.request.urlopen(urllib.request.Request(url, count.encode(), headers)) as answer:
            answer.read()


@contextmanager
def object_store(directory: Path) -> Iterator[ObjectStore]:
    """Run a server while the block runs; its log goes into a directory. Skips the test without moto."""
    pytest.importorskip("moto", reason="needs moto[s3], flask and flask-cors")
    log = directory / "object_store.log"
    command = [sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("wb") as file:
        server = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=file, env={**os.environ, "PYTHONWARNINGS": "ignore"}
        )
    try:
        yield ObjectStore(_port_in(log, server))
    finally:
        server.kill()
        server.wait()


def _port_in(log: Path, server: subprocess.Popen[bytes]) -> int:
    """Return the port that a server notes in its log once it has started."""
    wait_until(lambda: server.poll() is not None or _STARTED.search(log.read_text()) is not None, 60.0)
    found = _STARTED.search(log.read_text())
    assert found is not None, log.read_text()
    return int(found[1])
