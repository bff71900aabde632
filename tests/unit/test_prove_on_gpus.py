"""`scripts/prove-on-gpus`: real bash, with stand-ins for Python, its packages and `invoke`."""

import fcntl
import gzip
import hashlib
import io
import shutil
import subprocess
import tarfile

import pytest

from stackyard.definitions.project import ROOT
from tests.gpu import hosts
from tests.unit.standins import StandIns

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("allow_processes")]
SCRIPT = ROOT / "scripts/prove-on-gpus"

# What `python3 -m venv FOLDER` makes here: programs that note their call.
PYTHON = """#!/bin/bash
mkdir -p "$3/bin"
for name in python uv pytest invoke; do ln -s "{stub}" "$3/bin/$name"; done
"""
STUB = """#!/bin/bash
name=${{0##*/}}
echo "$name $*" >> {told}
case "$name $1 $2" in
    "python -m tests.gpu.hosts") if [ "$3" = {refusing} ]; then exit 1; fi ;;
    "invoke smoke {failing}") echo "{failing} has failed"; exit 7 ;;
    "invoke smoke "*) mkdir -p "reports/$2"; echo seen > "reports/$2/smoke.json" ;;
esac
"""
# Examples with a note are templates.
EXAMPLES = [
    ("megatron", "gpt-tp", "summary: small\n"),
    ("megatron", "gpt2-345m-3d", "summary: large\nnote: then\n"),
    ("megatron", "gpt2-345m-tp", "summary: large\nnote: then\n"),
    ("fairseq", "lm-fsdp", "summary: large\nnote: then\n"),
]
ATTACH = """#!/bin/bash
echo "$*" >> {told}
case "$1 $2" in
    "evidence "*/{refused}/*) exit 1 ;;
    "pull {unpulled}") exit 4 ;;
esac
"""


def archive(**files):
    """A tar archive with files of these texts or bytes by name; `__` stands for a slash."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            data = content if isinstance(content, bytes) else content.encode()
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


class Machine:
    """A machine with pieces of a release, where every program but the shell's own is a stand-in."""

    def __init__(self, folder):
        self.folder, self.told = folder, folder / "told"
        self.pieces, self.work = folder / "pieces", folder / "work"
        self._programs, self._stub = StandIns(folder), folder / "stub"
        self._programs.program("python3", PYTHON.format(stub=self._stub))
        self._programs.program("docker", f"#!/bin/bash\necho docker $* >> {self.told}\n")
        self._programs.program("ssh", "#!/bin/bash\n")
        self._programs.program("ssh-keygen", "#!/bin/bash\n")
        self._programs.program("nvidia-smi", "#!/bin/bash\nprintf 'GPU 0\\nGPU 1\\n'\n")
        self.fail(stack="none")
        load = archive(**{
            "base": "cuda\n",
            "stacks": "accelerate\nfairseq\nmegatron\n",
            "machine": "machine-image\n",
            "project.tar.gz": gzip.compress(archive(
                **{f"images__{stack}__examples__{name}.yml": text
                                for stack, name, text in EXAMPLES}
            )),
            "images__install.sh": f"echo install.sh >> {self.told}\n",
        })  # fmt: skip
        self.pieces.mkdir()
        half = 1000  # bytes: within what the archive holds, so that both matter
        for name, part in (("piece-000", load[:half]), ("piece-001", load[half:])):
            (self.pieces / name).write_bytes(part)
            with (self.pieces / "SHA256SUMS").open("a") as sums:
                sums.write(f"{hashlib.sha256(part).hexdigest()}  {name}\n")

    def fail(self, *, stack="none", hosts="nothing"):
        """Have the smokes of one stack fail from now on, or a command about hosts."""
        self._stub.write_text(STUB.format(told=self.told, failing=stack, refusing=hosts))
        self._stub.chmod(0o755)

    def run(self, *words):
        return call(SCRIPT, "run", self.pieces, self.work, *words, PATH=self._programs.path)

    def calls(self):
        """What was called since this was asked last."""
        lines = self.told.read_text().splitlines() if self.told.exists() else []
        self.told.unlink(missing_ok=True)
        return lines


def call(*words, **env):
    done = subprocess.run(
        ["bash", *words], env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        (), ("pack",), ("pack", "folder"), ("run", "pieces"), ("show", "x"),
        ("run", "a", "--odd", "x"),
        ("attach", "seen", "--to", "x"), ("attach", "seen", "--hosts", "x"),
        ("pack", "one", "two", "--to", "x"),
    ],
)  # fmt: skip
def test_wrong_words_get_the_usage(words):
    code, out, said = call(SCRIPT, *words)
    assert (code, out) == (2, "")
    assert "prove-on-gpus run PIECES WORK [STEP ...]" in said
    assert "It signs nothing" in said


def test_an_unknown_step_is_refused_before_anything_is_installed(machine):
    code, _, said = machine.run("smoke", "smokes")
    assert (code, machine.calls()) == (1, [])
    assert "unknown step smokes. One of: install smoke nodes tests bench templates hosts" in said
    assert not machine.work.exists()


def test_a_damaged_piece_is_refused(machine):
    with (machine.pieces / "piece-001").open("ab") as file:
        file.write(b"x")
    code, out, said = machine.run()
    assert (code, machine.calls()) == (1, [])
    assert "piece-001: FAILED" in out and "a piece is missing or damaged" in said
    assert not (machine.work / "installed").exists()


def test_a_piece_that_is_missing_is_refused(machine):
    (machine.pieces / "piece-000").unlink()
    assert machine.run()[0] == 1
    assert machine.calls() == []


def test_a_piece_of_an_earlier_pack_is_not_put_together_with_the_others(machine):
    for name in ("piece-0005", "piece-999"):  # between the others, and behind them
        (machine.pieces / name).write_bytes(b"stale" * 400)
    code, _, said = machine.run("install")
    assert (code, said) == (0, "")
    assert "install.sh" in machine.calls()


def test_a_part_of_the_installation_that_fails_is_named(machine):
    # Seen in place of a hang: the time is what `timeout` is given.
    (machine.folder / "bin/timeout").write_text("#!/bin/bash\necho $3 $4 >> $0.log\nexit 124\n")
    (machine.folder / "bin/timeout").chmod(0o755)
    code, _, said = machine.run("install")
    assert code == 1
    assert "exit code 124 (124: it took over 900 s): sha256sum" in said
    assert (machine.folder / "bin/timeout.log").read_text() == "900 sha256sum\n"


def test_a_step_that_fails_fails_the_whole_and_the_others_still_run(machine):
    machine.fail(stack="megatron")
    code, out, _ = machine.run()
    assert code == 1
    calls = machine.calls()
    smokes = [line.split()[2] for line in calls if line.startswith("invoke smoke")]
    assert smokes == ["accelerate", "fairseq", "megatron"] * 3  # in one container, two, over hosts
    assert [line for line in calls if line.startswith("pytest")]
    assert [line for line in calls if line.startswith("invoke bench fairseq --gpus 2")]
    assert "megatron-smoke: exit code 7" in out
    with tarfile.open(machine.work / "seen.tar.gz") as seen:
        names = set(seen.getnames())
        log = seen.extractfile("said/megatron-smoke.log").read()
    assert log == b"megatron has failed\n"
    assert {"said/fairseq-smoke.log", "said/tests.log", "reports/fairseq/smoke.json"} <= names
    assert {"said/fairseq-smoke.passed", "said/bench.passed"} <= names
    assert "said/megatron-smoke.passed" not in names


def test_what_was_seen_is_kept_after_each_command_where_it_was_asked_for(machine):
    kept = machine.folder / "out/seen.tar.gz"
    kept.parent.mkdir()
    # What is there while the last stack trains, when the machine may be taken away.
    machine._stub.write_text(
        STUB.format(told=machine.told, failing="none", refusing="nothing").replace(
            '"invoke smoke none")',
            f'"invoke smoke megatron") cp {kept} {kept}.then ;;\n    "invoke smoke none")',
        )
    )
    assert machine.run("--seen", kept, "smoke")[0] == 0
    assert not (machine.work / "seen.tar.gz").exists()
    with tarfile.open(f"{kept}.then") as seen:
        names = {name for name in seen.getnames() if name.endswith((".json", ".passed"))}
    assert names == {
        "reports/accelerate/smoke.json", "said/accelerate-smoke.passed",
        "reports/fairseq/smoke.json", "said/fairseq-smoke.passed",
    }  # fmt: skip


def test_a_machine_with_one_gpu_benches_on_it(machine):
    machine._programs.program("nvidia-smi", "#!/bin/bash\necho GPU 0\n")
    assert machine.run("bench")[0] == 0
    assert [line for line in machine.calls() if line.startswith("invoke bench fairseq --gpus 1")]


def test_every_template_is_trained_in_its_full_size_on_two_gpus(machine):
    assert machine.run("templates")[0] == 0
    trained = [line for line in machine.calls() if line.startswith("invoke bench")]
    assert trained == [
        f"invoke bench {stack} --example {name} --gpus 2 --image stackyard/{stack}:cuda{more}"
        for stack, name, more in (
            ("fairseq", "lm-fsdp", ""),
            ("megatron", "gpt2-345m-3d", " --set tp=2,pp=1"),
            ("megatron", "gpt2-345m-tp", " --set tp=2"),
        )
    ]
    for path in (machine.work / "project/images").rglob("*.yml"):
        path.unlink()
    assert machine.run("templates")[0] == 1


def test_only_what_has_not_passed_is_run_again(machine):
    machine.fail(stack="megatron")
    machine.run()
    machine.calls()
    machine.fail(stack="none")
    assert machine.run()[0] == 0
    calls = [line.split()[1:4] for line in machine.calls()]
    assert [c[:2] for c in calls if c[0] == "smoke"] == [["smoke", "megatron"]] * 3
    assert ["-m", "tests.gpu.hosts", "start"] in calls and len(calls) == 5
    assert machine.run()[0] == 0
    assert machine.calls() == []


def test_on_four_gpus_all_of_them_are_trained_on(machine):
    assert machine.run("--gpus", "4", "smoke", "nodes", "bench", "hosts", "certify")[0] == 0
    calls = [line.replace(str(machine.work), "WORK") for line in machine.calls()]
    stacks, image = ("accelerate", "fairseq", "megatron"), "--image stackyard/{}:cuda"
    two = "WORK/hosts/only-study-train/hosts.yml"
    wanted = [
        f"{words} {image}{more}".format(stack, stack)
        for words, more in (
            ("smoke {} --gpus 4", ""),
            ("smoke {} --gpus 4", " --nodes 2"),
            ("smoke {} --gpus 4", " --nodes 4"),
            ("bench {} --gpus 4 --rounds 1", ""),
            (f"smoke {{}} --gpus 4 --hosts {two} --base cuda", ""),
        )
        for stack in stacks
    ]
    told = [line.removeprefix("invoke ") for line in calls if line.startswith("invoke")]
    assert [line for line in told if not line.startswith("doctor")] == wanted
    of_hosts = [line.removeprefix(f"{HOSTS} ") for line in calls if line.startswith(HOSTS)]
    assert [line.split()[:3] for line in of_hosts] == [
        ["start", "WORK/hosts", "study=0,1"], ["certify", "WORK/hosts", "good"],
    ]  # fmt: skip
    assert "train=2,3 both=0,1" in of_hosts[0]
    assert machine.run("--gpus", "4", "smoke", "nodes")[0] == 0 and machine.calls() == []


def test_a_step_that_another_run_plays_is_left_to_it(machine):
    assert machine.run("install")[0] == 0
    machine.calls()
    with (machine.work / "said/fairseq-smoke.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, said, _ = machine.run("smoke")
        assert code == 0 and "fairseq-smoke: another run plays it" in said
    smoked = [line.split()[2] for line in machine.calls() if line.startswith("invoke smoke")]
    assert smoked == ["accelerate", "megatron"]
    assert machine.run("smoke")[0] == 0
    assert [line.split()[2] for line in machine.calls() if "smoke" in line] == ["fairseq"]


HOSTS = "python -m tests.gpu.hosts"


def test_the_hosts_are_started_once_and_all_that_is_over_them_runs(machine):
    code, _, said = machine.run("hosts", "certify")
    assert (code, said) == (0, "")
    calls = [line for line in machine.calls() if line.startswith((HOSTS, "invoke"))]
    place, inventory = f"{machine.work}/hosts", f"{machine.work}/hosts/only-study-train/hosts.yml"
    images = ",".join(f"stackyard/{name}:cuda" for name in ("accelerate", "fairseq", "megatron"))
    assert calls[:3] == [
        f"{HOSTS} start {place} study=0 train=1 both=0,1 --images {images}",
        f"invoke doctor --hosts {inventory} --base cuda",
        f"invoke smoke accelerate --gpus 2 --hosts {inventory} --base cuda --image"
        " stackyard/accelerate:cuda",
    ]
    assert calls[5:9] == [f"{HOSTS} launchers {place} --base cuda"] + [
        f"{HOSTS} matrix {place} {name} --base cuda"
        for name in ("accelerate", "fairseq", "megatron")
    ]
    cases = [line.split()[5] for line in calls if line.startswith(f"{HOSTS} certify")]
    assert cases == list(hosts.CASES)


def test_hosts_that_do_not_start_are_tried_once_and_fail_their_steps(machine):
    machine.fail(hosts="start")
    code, out, _ = machine.run("hosts", "certify")
    assert (code, out.count("the hosts did not start")) == (1, 1)
    assert [line.split()[3] for line in machine.calls() if line.startswith(HOSTS)] == ["start"]


def test_a_case_that_is_not_named_fails_the_step_and_is_run_again(machine):
    machine.fail(hosts="certify")
    assert machine.run("certify")[0] == 1
    assert not list((machine.work / "said").glob("certify-*.passed"))


def test_nothing_is_started_when_the_time_is_over(machine):
    machine.run("install")
    machine.calls()
    code, out, _ = machine.run("smoke", "--seconds", "60")
    assert (code, machine.calls()) == (1, [])
    assert out.count("no time is left for it") == 3
    assert (machine.work / "seen.tar.gz").exists()


# Where the network is


@pytest.fixture
def checkout(tmp_path):
    """A committed tree with the script; `invoke` notes its calls in the file `told` beside it."""
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPT, tree / "scripts")
    (tree / ".gitignore").write_text(".venv\n")
    (tree / ".venv/bin").mkdir(parents=True)
    for stack in ("one", "two"):
        (tree / "images" / stack).mkdir(parents=True)
        (tree / "images" / stack / "stack.yml").write_text("")
    write_invoke(tree)
    git = ["git", "-C", tree, "-c", "user.name=x", "-c", "user.email=x@example"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True, timeout=60)
    return tree


def write_invoke(tree, *, refused="none", unpulled="none"):
    told = tree.parent / "told"
    path = tree / ".venv/bin/invoke"
    path.write_text(ATTACH.format(told=told, refused=refused, unpulled=unpulled))
    path.chmod(0o755)


@pytest.mark.parametrize("path", ["scripts/prove-on-gpus", "images/new.yml"])
def test_a_tree_with_changes_is_not_packed(checkout, tmp_path, path):
    with (checkout / path).open("a") as file:
        file.write("\n")
    code, _, said = call(
        checkout / "scripts/prove-on-gpus", "pack", tmp_path / "out", "--to", "registry/x"
    )
    assert code == 1
    assert path.split("/", maxsplit=1)[0] in said and "differ from HEAD" in said
    assert not (tmp_path / "told").exists() and not (tmp_path / "out").exists()


def test_what_was_committed_is_packed(checkout, tmp_path):
    # It gets as far as the first build, which is a stand-in, and ends where there is no pip.
    call(checkout / "scripts/prove-on-gpus", "pack", tmp_path / "out", "--to", "registry/x")
    told = (tmp_path / "told").read_text().splitlines()
    assert told[:2] == ["build all --base cuda", "smoke one --gpus 0 --base cuda"]
    assert told[3] == "smoke two --gpus 0 --base cuda"
    assert told[5].startswith("bundle all --images --base cuda --from registry/x")
    with tarfile.open(tmp_path / "out/load/project.tar.gz") as packed:
        assert "scripts/prove-on-gpus" in packed.getnames()


def test_one_stack_on_another_base_is_packed(checkout, tmp_path):
    more = ("--base", "cuda12", "--stack", "two", "--to", "registry/x")
    call(checkout / "scripts/prove-on-gpus", "pack", tmp_path / "out", *more)
    words = [line.split()[:4] for line in (tmp_path / "told").read_text().splitlines()]
    assert words[0] == ["build", "two", "--base", "cuda12"]
    assert [line[:2] for line in words] == [
        [a, "two"] for a in ("build", "smoke", "publish", "bundle")
    ]


PIECES = tuple(f"{stack}__1__a" for stack in ("accelerate", "fairseq", "megatron"))


def attach(checkout, tmp_path, pieces=PIECES, **names):
    write_invoke(checkout, **names)
    evidence = {f"reports__{name}.intoto.jsonl": "{}" for name in pieces} | {"said__x.log": ""}
    seen = tmp_path / "seen.tar"
    seen.write_bytes(gzip.compress(archive(**evidence)))
    (tmp_path / "hosts.yml").write_text("")
    code, out, said = call(
        checkout / "scripts/prove-on-gpus", "attach", seen, "--to", "registry/x",
        "--hosts", tmp_path / "hosts.yml",
    )  # fmt: skip
    did = [line.split()[0] for line in (tmp_path / "told").read_text().splitlines()]
    return code, out, said, did


ALL = ["evidence"] * 3 + ["releases"] + ["pull"] * 3


def test_evidence_is_attached_and_the_releases_pulled(checkout, tmp_path):
    code, out, said, did = attach(checkout, tmp_path)
    assert (code, said, did) == (0, "", ALL)
    assert "3 pieces of evidence are attached" in out


def test_of_certifications_that_of_healthy_gpus_is_attached(checkout, tmp_path):
    pieces = ("certify__good", "certify__flip")
    code, out, said, did = attach(checkout, tmp_path, pieces)
    assert (code, said, did) == (0, "", ["evidence", "releases"])
    assert "attaching certify/good.intoto.jsonl" in out and "flip" not in out


def test_nothing_to_attach_is_an_error(checkout, tmp_path):
    (tmp_path / "told").write_text("nothing\n")
    code, _, said, did = attach(checkout, tmp_path, ("certify__flip",))
    assert (code, did) == (1, ["nothing"])
    assert "holds no evidence" in said


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ({"refused": "accelerate"}, "1 of 3 pieces of evidence were refused, 0 of 3 releases"),
        ({"unpulled": "fairseq"}, "0 of 3 pieces of evidence were refused, 1 of 3 releases"),
    ],
)
def test_one_refusal_is_counted_and_the_rest_goes_on(checkout, tmp_path, names, what):
    code, _, said, did = attach(checkout, tmp_path, **names)
    assert (code, did) == (1, ALL)
    assert what in said
