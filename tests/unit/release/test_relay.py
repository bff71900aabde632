"""Who passes a parcel to whom, and what each of them may do."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from stackyard.mesh import owner
from stackyard.release import parcel, receiver, relay
from stackyard.release.parcel import Parcel, WholeFile, make_parcel
from stackyard.release.relay import Keys, Stop, successors
from stackyard.scan.oci import digest_of
from stackyard.system import signing
from stackyard.system.archive import pack
from tests.unit.release.test_parcel import read_pieces
from tests.unit.releases import accept, image, make_key, state


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 64, 65, 1000])
def test_every_host_gets_the_parcel_once_and_sends_it_at_most_twice(count):
    names = [f"h{number}" for number in range(count)]
    found = successors(names)
    given = [name for after in found.values() for name in after]
    assert sorted(given) == sorted(names[1:])
    assert max(len(after) for after in found.values()) <= 2
    depth, level = 0, [names[0]]
    while level:
        level, depth = [n for name in level for n in found[name]], depth + 1
    assert depth <= relay.CHAIN + count // relay.CHAIN + 1


def test_a_server_takes_the_pull_s_own_users_for_one_thing_only():
    files = Keys(1_700_000_000).of("a", "192.0.2.7", 2222)
    lines = dict(line.split(None, 1) for line in files["sshd_config"].decode().splitlines())
    assert lines["ListenAddress"] == "192.0.2.7"
    assert lines["ForceCommand"].startswith("sh @KEYS@/relay.sh receive ")
    assert lines["DisableForwarding"] == "yes" and lines["PermitTTY"] == "no"
    assert lines["AuthorizedKeysFile"] == "none" and lines["PasswordAuthentication"] == "no"
    assert lines["PermitRootLogin"] == "prohibit-password" and lines["UsePAM"] == "no"
    assert files["principals"] == f"{relay.PRINCIPAL}\n".encode()


def test_a_client_trusts_the_pull_s_authority_for_its_successors_alone():
    keys = Keys(1_700_000_000)
    after = [Stop(name="b", address="192.0.2.8", port=2223, user="ann")]
    files = keys.route(after, "/dev/shm/x")
    authority = keys.of("a", "192.0.2.7", 2222)["authority.pub"].strip()
    assert files["known_hosts"] == b"@cert-authority b " + authority + b"\n"
    text = files["ssh_config"].decode()
    assert "StrictHostKeyChecking yes" in text and "HostKeyAlias b" in text
    assert "Port 2223" in text and "User ann" in text
    assert files["next"] == b"b\n"


def test_the_last_host_passes_it_to_nobody():
    files = Keys(1_700_000_000).route([], "/dev/shm/x")
    assert files["next"] == b"" and files["known_hosts"] == b""


def test_private_keys_are_different_on_every_host():
    keys = Keys(1_700_000_000)
    one, two = keys.of("a", "192.0.2.7", 1), keys.of("b", "192.0.2.8", 1)
    assert one["user_key"] != two["user_key"] and one["host_key"] != two["host_key"]
    assert one["authority.pub"] == two["authority.pub"]


def large():
    layers = [f"sha256:{letter * 64}" for letter in "abc"]
    config = json.dumps({"rootfs": {"diff_ids": ["1", "2", "3"]}}).encode()
    sizes = (40 * 2**20 + 1, 30 * 2**20, 7)
    return Parcel(config=config, layers=tuple(layers), carried=tuple(zip(layers, sizes)))  # noqa: B905


def test_nothing_is_given_to_an_engine_before_it_was_checked():
    whole = large()
    files = relay.plan(whole, in_parts=True)
    steps = [line.split() for line in files["plan"].decode().splitlines()]
    assert [step[0] for step in steps] == ["sum", "stage", "sum", "stage", "sum", "image"]
    checked = 0
    for step in steps:
        if step[0] == "sum":
            checked = int(step[2]) + int(step[3])
        elif step[0] == "stage":
            assert files[f"head-{step[1]}"]
            assert 0 <= int(step[2]) + int(step[3]) - checked < 512  # padding
    assert steps[-1] == ["image", str(whole.body), str(sum(map(int, steps[-3][2:4]))),
                         str(whole.size)]  # fmt: skip


def test_an_engine_that_takes_no_parts_gets_the_whole():
    whole = large()
    files = relay.plan(whole, in_parts=False)
    steps = [line.split() for line in files["plan"].decode().splitlines()]
    assert [step[0] for step in steps] == ["sum", "sum", "sum", "image"]
    assert steps[-1] == ["image", str(whole.body), str(whole.body), str(whole.size)]
    assert set(files) == {"plan"}


# What a host does with it: the script itself, and an engine that keeps what it is given

IMAGE = image("one" * 900, "two" * 900, "three" * 900)
LAYERS = list(IMAGE.layers)
DOCKER = """#!/bin/sh
shift 2
case $1 in
load) mkdir -p "$GIVEN"; cat > "$GIVEN/$(ls "$GIVEN" | wc -l)" ;;
rmi) echo "$2" >> "$GIVEN-dropped" ;;
esac
"""


class Host:
    """A host with a folder of a pull and a parcel, as a puller and other hosts made them."""

    def __init__(self, folder):
        self.folder, self.keys, self.into = folder, folder / "keys", folder / "parcel"
        self.given, self.key = folder / "given", make_key(folder)
        self.keys.mkdir()
        self.sign(state(IMAGE))
        (self.keys / "signers").write_bytes(accept(folder, self.key).read_bytes())
        (self.keys / "namespace").write_text(signing.NAMESPACE)
        for name, path in receiver.SCRIPTS.items():
            (self.keys / name).write_bytes(path.read_bytes())
        self.program("docker", DOCKER)
        whole = make_parcel(IMAGE.config, IMAGE.said, [{e["diff_id"] for e in IMAGE.said}])
        self.parcel = whole
        self.data = b"".join(
            IMAGE.layers[p.digest] if p.digest else p.data for p in whole.pieces(0)
        )
        self.into.write_bytes(self.data)

    def sign(self, text):
        (self.keys / "release.json").write_bytes(text)
        (self.keys / "release.json.sig").write_bytes(signing.sign(text, self.key))

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(self, verb, *, path="", plan=b""):
        """Run one of the script's functions; its exit code and output."""
        return self._run(["/bin/sh", self.keys / "relay.sh", verb, self.keys], plan, path)

    def own(self):
        """Run a host's whole part in a pull, with the files of the folder as its archive."""
        data = pack({path.name: path.read_bytes() for path in self.keys.iterdir()}, mode=0o600)
        return self._run(owner.own_words(len(data), "parcel", "/engine"), data)

    def _run(self, words, given, path=""):
        own = {"PATH": path or f"{self.folder / 'bin'}:{os.environ['PATH']}", "socket": "/engine",
               "GIVEN": str(self.given), "into": str(self.into),
               "XDG_CACHE_HOME": str(self.folder / "cache")}  # fmt: skip
        out = self.folder / "said"
        # Into a file: what the script started may hold its output a moment longer.
        with out.open("wb") as file:
            done = subprocess.run(
                words, env={**os.environ, **own}, input=given, stdout=file, stderr=file, check=False
            )
        return done.returncode, out.read_text()

    def keep(self, *, in_parts=False, change=lambda plan: plan):
        files = relay.plan(self.parcel, in_parts=in_parts)
        for name, data in files.items():
            (self.keys / name).write_bytes(data)
        return self.run("keep", plan=change(files["plan"].decode()).encode())

    def loaded(self):
        """What the engine was given, an archive each, as files by name."""
        found = (
            sorted(self.given.iterdir(), key=lambda p: int(p.name)) if self.given.exists() else []
        )
        return [read_pieces(path.read_bytes()) for path in found]

    def damage(self, layer):
        """Change one byte of a layer in the parcel."""
        at = self.data.index(IMAGE.layers[layer]) + 20
        changed = self.data[:at] + bytes([self.data[at] ^ 1]) + self.data[at + 1 :]
        self.into.write_bytes(changed)


@pytest.fixture
def host(tmp_path, allow_processes):
    return Host(tmp_path)


def refuses(host, why):
    code, said = host.run("authentic")
    assert code == 1
    assert said.startswith("failed its signature is wrong") and why in said


def test_a_host_believes_a_release_that_is_signed_as_it_should_be(host):
    assert host.run("authentic") == (0, "")


def test_a_host_does_not_believe_a_strangers_signature(host):
    host.key = make_key(host.folder, "stranger")
    host.sign(state(IMAGE))
    assert host.run("authentic")[0] == 1


def test_a_host_does_not_believe_a_statement_that_was_changed(host):
    text = state(IMAGE).replace(b'"proven": false', b'"proven": true')
    (host.keys / "release.json").write_bytes(text)
    refuses(host, "incorrect signature")


def test_a_host_does_not_believe_a_signature_for_another_purpose(host):
    words = ["ssh-keygen", "-Y", "sign", "-f", host.key, "-n", "file"]
    seal = subprocess.run(words, input=state(IMAGE), capture_output=True, check=True).stdout
    (host.keys / "release.json.sig").write_bytes(seal)
    public = (host.folder / "publisher.pub").read_text()
    (host.keys / "signers").write_text(f"publisher@site {public}")
    refuses(host, "namespace")


@pytest.mark.parametrize("name", ["signers", "release.json.sig"])
def test_a_host_does_not_believe_a_release_without_signature_or_signers(host, name):
    (host.keys / name).write_bytes(b"")
    assert host.run("authentic")[0] == 1


def test_a_host_that_cannot_verify_says_so(host):
    """The machine that the pull was started on did, before anything was sent."""
    code, said = host.run("authentic", path=str(host.folder / "nothing"))
    assert code == 0 and "no ssh-keygen here" in said


SSHD = """#!/bin/sh
: > "$GIVEN-sshd"
exec sleep 60
"""


@pytest.mark.parametrize(("signed", "serves"), [(True, True), (False, False)])
def test_a_host_takes_logins_only_for_a_release_that_it_believes(host, signed, serves):
    host.program("sshd", SSHD)
    for name, data in {**Keys(1_700_000_000).of("a", "192.0.2.7", 1), "plan": b""}.items():
        (host.keys / name).write_bytes(data)
    if not signed:
        (host.keys / "release.json").write_bytes(b"{}")
    _, said = host.own()
    assert ("serving" in said.split()) == Path(f"{host.given}-sshd").exists() == serves
    assert ("failed its signature is wrong" in said) != serves
    assert not Path(said.partition("keys ")[2].split()[0]).exists()


def whole_image(files):
    (entry,) = json.loads(files["manifest.json"])
    return files[entry["Config"]], [files[path] for path in entry["Layers"] if path in files]


def test_an_engine_is_given_the_image_as_it_was_signed(host):
    assert host.keep() == (0, "loaded\n")
    (given,) = host.loaded()
    assert whole_image(given) == (IMAGE.config, list(IMAGE.layers.values()))


def test_an_engine_is_given_layers_early_and_the_last_with_the_image(host, monkeypatch):
    monkeypatch.setattr(parcel, "STAGE_BYTES", 1)
    assert host.keep(in_parts=True) == (0, "loaded\n")
    layers = [found for given in host.loaded() for found in whole_image(given)[1]]
    assert layers == list(IMAGE.layers.values())
    stages = [stage.image for stage in host.parcel.stages()]
    dropped = Path(f"{host.given}-dropped").read_text().split()
    assert sorted(dropped) == sorted(stages) and len(stages) == 2


ENGINE_THAT_FINISHES = """#!/bin/sh
shift 2
case $1 in
load) cat > /dev/null; { sleep 0.5; echo made >> "$GIVEN-said"; } & kill $PPID; wait ;;
rmi) echo dropped >> "$GIVEN-said" ;;
esac
"""


def test_a_stage_that_the_engine_finishes_after_the_cut_is_dropped(host, monkeypatch):
    """An engine goes on with what it has read when its client is gone."""
    monkeypatch.setattr(parcel, "STAGE_BYTES", 1)
    host.program("docker", ENGINE_THAT_FINISHES)
    assert host.keep(in_parts=True)[0] == 1
    said = Path(f"{host.given}-said")
    end = time.monotonic() + 10
    while "made" not in said.read_text() and time.monotonic() < end:
        time.sleep(0.1)
    assert said.read_text().split() == ["made", "dropped"]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("in_parts", [True, False])
def test_a_layer_that_was_changed_on_its_way_goes_to_no_engine(host, monkeypatch, number, in_parts):
    monkeypatch.setattr(parcel, "STAGE_BYTES", 1)
    host.damage(LAYERS[number])
    code, said = host.keep(in_parts=in_parts)
    assert (code, said) == (1, f"failed {LAYERS[number]} is not what was signed\n")
    # Those below it were what was signed.
    given = [found for files in host.loaded() for found in whole_image(files)[1]]
    assert given == list(IMAGE.layers.values())[: number if in_parts else 0]
    # The parcel is of no use: the next pull must not go on with it.
    assert (host.keys / "over").exists()


def test_a_layer_that_the_statement_does_not_name_goes_to_no_engine(host):
    """Whatever plan a host was given, and although the parcel fits it."""
    other = image("evil" * 900)
    (digest, data), place = *other.layers.items(), host.data.index(IMAGE.layers[LAYERS[0]])
    host.into.write_bytes(host.data[:place] + data + host.data[place + len(data) :])

    def change(plan):
        first, rest = plan.split("\n", 1)
        assert LAYERS[0].partition(":")[2] in first
        return f"sum {digest.partition(':')[2]} {place} {len(data)}\n{rest}"

    code, said = host.keep(change=change)
    assert (code, said) == (1, f"failed {digest.partition(':')[2]} is not signed for\n")
    assert host.loaded() == []


def test_an_engine_gets_nothing_before_it_has_come(host):
    """Who waits sleeps: with the first sleep the rest comes."""
    host.program("sleep", f'#!/bin/sh\ncp "{host.folder}/rest" "$into"\n')
    (host.folder / "rest").write_bytes(host.data)
    host.into.write_bytes(host.data[: host.parcel.body + 100])
    assert host.keep() == (0, "loaded\n")
    assert whole_image(*host.loaded()) == (IMAGE.config, list(IMAGE.layers.values()))


def test_an_engine_that_does_not_take_the_image_is_told(host):
    host.program("docker", "#!/bin/sh\nexit 1\n")
    code, said = host.keep()
    assert code == 1 and "failed its engine did not take the image" in said


# One file in place of an image


@pytest.fixture
def filed(host):
    """Keep a file of these bytes: exit code, output, and the path that it was to have."""

    def keep(data=b"x" * 5000, *, came=None, target=None):
        target = target or host.folder / "images" / "a b.sqsh"
        host.into.write_bytes(data if came is None else came)
        files = relay.file_plan(WholeFile(digest=digest_of(data), size=len(data)), str(target))
        for name, content in files.items():
            (host.keys / name).write_bytes(content)
        return *host.run("keep", plan=files["plan"]), target

    return keep


def test_a_file_gets_its_path_when_all_of_it_is_there_and_right(host, filed):
    code, said, target = filed(b"y" * 9000)
    assert (code, said) == (0, "loaded\n")
    assert target.read_bytes() == b"y" * 9000
    assert target.stat().st_mode & 0o777 == 0o644, "jobs of others read it"
    assert [path.name for path in target.parent.iterdir()] == ["a b.sqsh"]
    assert target.stat().st_ino == host.into.stat().st_ino, "no second copy on one file system"
    assert (host.keys / "over").read_text() == f"{host.into}\n"


def test_a_file_is_copied_where_the_folder_is_another_file_system(host, filed):
    host.program("ln", "#!/bin/sh\nexit 1\n")
    code, _, target = filed()
    assert code == 0 and target.read_bytes() == b"x" * 5000
    assert target.stat().st_ino != host.into.stat().st_ino


def test_a_file_that_was_changed_on_its_way_gets_no_path(host, filed):
    data = b"x" * 5000
    code, said, target = filed(data, came=data[:-1] + b"y")
    assert (code, said) == (1, f"failed the file that came is not {digest_of(data)}\n")
    assert not target.parent.exists()
    assert (host.keys / "over").exists(), "the next pull must not go on with it"


def test_a_folder_that_cannot_be_written_is_told(host, filed):
    (host.folder / "file").write_bytes(b"")
    target = host.folder / "file" / "x.sqsh"
    code, said, _ = filed(target=target)
    assert code == 1 and f"failed it cannot be written to {target}" in said


def test_what_is_half_written_goes_with_the_keys(host, filed):
    """A copy that never ends, and an owner that removes the keys meanwhile."""
    host.program("ln", "#!/bin/sh\nexit 1\n")
    host.program(
        "cp", f'#!/bin/sh\n: > "$2"\n. "{host.keys}/owner.sh"\nremove "{host.keys}"\nexit 1\n'
    )
    code, _, target = filed()
    assert code == 1
    assert list(target.parent.iterdir()) == [] and not host.keys.exists()


def test_nothing_starts_for_a_folder_whose_list_of_processes_was_read(host):
    """Else the owner would wait for it for ever: a server that was noted just then (seen once)."""
    ran = host.folder / "ran"
    (host.keys / "over").write_text(f"{host.into}\n")
    script = f"""
        keys={host.keys}; . "$keys/owner.sh"
        rm() {{ note late $$ && : > {ran}; command rm "$@"; }}
        remove "$keys"
    """
    subprocess.run(["/bin/sh", "-c", script], check=True, capture_output=True)
    assert not ran.exists()
    assert not list(host.folder.glob("keys*")) and not host.into.exists()


def test_a_parcel_of_one_file_is_read_from_any_byte():
    parcel = WholeFile(digest="sha256:" + 64 * "a", size=10)
    (piece,) = parcel.pieces(4)
    assert (piece.digest, piece.start, piece.size) == (parcel.digest, 4, 6)
    assert list(parcel.pieces(10)) == []
    assert parcel.name != WholeFile(digest="sha256:" + 64 * "b", size=10).name
