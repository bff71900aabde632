"""Inside the stand-in: give torch a version of a vendor's own, and pin everything for pip."""

import importlib.metadata
import re
import sysconfig
from pathlib import Path

VERSION = "2.13.0a0+5ac4a1e.nv25.12"
site = Path(sysconfig.get_path("purelib"))
(old,) = site.glob("torch-*.dist-info")
new = site / f"torch-{VERSION}.dist-info"
old.rename(new)
for path, pattern, text in (
    (new / "METADATA", r"^Version: .*$", f"Version: {VERSION}"),
    (site / "torch" / "version.py", r"^__version__ = .*$", f"__version__ = {VERSION!r}"),
):
    changed, count = re.subn(pattern, text, path.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1, path
    path.write_text(changed)
record = new / "RECORD"
record.write_text(record.read_text().replace(f"{old.name}/", f"{new.name}/"))
constraint = Path("/etc/pip/constraint.txt")
constraint.parent.mkdir()
held = sorted(f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions())
constraint.write_text("\n".join(held) + "\n")
