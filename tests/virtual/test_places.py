"""Files on S3 and web servers, and the packages that parsing needs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import uuid
from typing import TYPE_CHECKING

import numpy as np
import pytest

import icefloe
from icefloe.errors import FormatError, ObjectNotFoundError
from icefloe.model.chunk_payload import ETag
from icefloe.storage import Credentials, http_store, s3_static_credentials, s3_storage, s3_store
from icefloe.virtual import LoadedArray, VirtualArray, VirtualChunkContainer, parse
from support.netcdf_archives import assert_same, open_group, write_rich_netcdf4, write_simple
from support.web_servers import web_server

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.virtual import VirtualDataset
    from support.servers import S3Server

pytestmark = pytest.mark.filterwarnings("ignore")


def _write_and_compare(
    dataset: VirtualDataset,
    container: VirtualChunkContainer,
    credential: icefloe.AnyCredential,
    path: Path,
) -> None:
    """Write a dataset to a repository, and compare the values with the file."""
    from support.netcdf_archives import read_files  # noqa: PLC0415

    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(container)
    repository = icefloe.Repository.create(
        icefloe.in_memory_storage(), config, {container.url_prefix: credential}
    )
    session = repository.writable_session("main")
    dataset.write(session)
    session.commit("remote")
    assert_same(open_group(repository), read_files(path))


def test_s3(s3_server: S3Server, tmp_path: Path) -> None:
    """Files and Zarr stores in a bucket; references have ETags."""
    prefix = uuid.uuid4().hex
    storage = s3_storage(
        bucket=s3_server.bucket,
        prefix=prefix,
        region="us-east-1",
        endpoint_url=s3_server.endpoint_url,
        allow_http=True,
        access_key_id=s3_server.access_key_id,
        secret_access_key=s3_server.secret_access_key,
    )
    path = write_rich_netcdf4(tmp_path / "a b.nc")
    storage.put("deep/a b.nc", path.read_bytes())
    url = f"s3://{s3_server.bucket}/{prefix}"
    container = VirtualChunkContainer(
        f"{url}/",
        s3_store(
            region="us-east-1",
            endpoint_url=s3_server.endpoint_url,
            allow_http=True,
            s3_compatible=True,
            force_path_style=True,
        ),
    )
    credential = Credentials.S3(
        s3_static_credentials(
            access_key_id=s3_server.access_key_id, secret_access_key=s3_server.secret_access_key
        )
    )

    def parse_object(name: str) -> VirtualDataset:
        return parse(f"{url}/{name}", containers=[container], credentials={f"{url}/": credential})

    dataset = parse_object("deep/a%20b.nc")
    array = dataset.arrays["t2m"]
    assert isinstance(array, VirtualArray)
    assert {type(ref.checksum) for ref in array.refs.payloads} == {ETag}  # type: ignore[union-attr]
    _write_and_compare(dataset, container, credential, path)

    store = tmp_path / "a.zarr"
    from support.netcdf_archives import read_files  # noqa: PLC0415

    read_files(path).drop_vars("letters").to_zarr(store, consolidated=False, zarr_format=2)
    for file in store.rglob("*"):
        if file.is_file():
            storage.put(f"a.zarr/{file.relative_to(store)}", file.read_bytes())
    arrays = parse_object("a.zarr").arrays
    assert isinstance(arrays["time"], LoadedArray)
    assert arrays["rain"].shape == (4, 6, 8)
    with pytest.raises(
        ObjectNotFoundError, match=r"missing\.nc: there is no such file or directory"
    ):
        parse_object("missing.nc")


def test_http(tmp_path: Path) -> None:
    """Files over HTTP with range requests; error pages are refused."""
    path = write_simple(tmp_path / "a.nc", days=4)
    (tmp_path / "page.nc").write_text("<html>Please log in</html>")
    with web_server(tmp_path) as url:
        dataset = parse(f"{url}/a.nc")
        container = VirtualChunkContainer(f"{url}/", http_store())
        _write_and_compare(dataset, container, Credentials.HttpAccess(), path)
        with pytest.raises(FormatError, match="an HTML page"):
            parse(f"{url}/page.nc")
        with pytest.raises(ObjectNotFoundError, match="there is no such file"):
            parse(f"{url}/missing.nc")


def test_large_remote_files_are_read_in_blocks(tmp_path: Path) -> None:
    """Parsing a large file does not fetch all of it."""
    import h5py  # noqa: PLC0415

    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=np.zeros((12, 1 << 20), "u1"), chunks=(1, 1 << 20))
        file["b"] = np.arange(3)
    with web_server(tmp_path) as url:
        dataset = parse(f"{url}/a.h5", loadable_variables=["b"])
    array = dataset.arrays["a"]
    assert isinstance(array, VirtualArray)
    with h5py.File(path) as file:
        expected = [file["a"].id.get_chunk_info(number).byte_offset for number in range(12)]
    assert array.refs.payloads.offset.tolist() == expected


def test_nothing_is_loaded_before_it_is_needed() -> None:
    """`icefloe.virtual` imports without extras; `parse` names the missing package."""
    code = """
    import sys
    for name in ("virtualizarr", "h5py", "pyarrow", "xarray", "virtual_tiff"):
        sys.modules[name] = None
    import icefloe, icefloe.virtual
    print(icefloe.virtual.VirtualChunks.__name__, icefloe.virtual.combine.__name__)
    open("a.nc", "wb").write(b"\\x89HDF\\r\\n\\x1a\\n")
    for name, head in (("a.nc", b"\\x89HDF\\r\\n\\x1a\\n"), ("a.tif", b"II*\\0")):
        open(name, "wb").write(head)
        try:
            icefloe.virtual.parse(name)
        except icefloe.InvalidInputError as error:
            print(error.kind, error)
    """
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
        )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "VirtualChunks combine"
    assert lines[1].startswith("missing-dependency ")
    assert lines[1].endswith("pip install 'icefloe[virtual]'")
    assert lines[2].endswith("virtual-tiff: pip install 'icefloe[geotiff]'")
