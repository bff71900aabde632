"""Every committed text belongs to a test (last in the folder, so that --accept has written it)."""

from tests.golden import test_launch, test_mesh
from tests.golden.conftest import HERE


def test_no_golden_file_is_left_over():
    wanted = {
        *test_launch.FILES,
        *test_launch.GPU_FILES,
        *test_launch.OPTION_FILES,
        *test_mesh.FILES,
    }
    assert {path.name for path in HERE.iterdir() if path.suffix == ".txt"} == wanted
