"""A layer's tar is refused where its headers lie, whatever Python's own reader makes of them."""

import io
import tarfile

import pytest

from stackyard.scan.layer_stream import members
from tests.unit.layers import tar

END = bytes(1024)


def read_all(data):
    for member, content in members(io.BytesIO(data)):
        if member is not None:
            content.read(member.size)


def header(**fields):
    info = tarfile.TarInfo("b")
    for name, value in fields.items():
        setattr(info, name, value)
    kind = tarfile.PAX_FORMAT if info.pax_headers else tarfile.GNU_FORMAT
    return info.tobuf(kind)


# -1 leads nowhere, -512 to the header itself, -5120 to the first header.
@pytest.mark.parametrize("size", [-1, -512, -5120])
def test_a_negative_size_is_refused(size):
    before = tar(("a", b"x" * 4000)).rstrip(b"\0").ljust(4608, b"\0")
    with pytest.raises(tarfile.TarError):
        read_all(before + header(size=size) + END)


@pytest.mark.parametrize("time", ["inf", "nan"])
def test_a_time_that_is_no_number_is_refused(time):
    with pytest.raises(tarfile.TarError):
        read_all(header(pax_headers={"mtime": time}) + END)


def test_a_map_of_a_sparse_file_that_holds_no_numbers_is_refused():
    about = {"major": "1", "minor": "0", "name": "b", "realsize": "1600"}
    headers = {f"GNU.sparse.{key}": value for key, value in about.items()}
    with pytest.raises(tarfile.TarError):
        read_all(header(size=512, pax_headers=headers) + b"1\nx\n".ljust(512, b"\0") + END)
