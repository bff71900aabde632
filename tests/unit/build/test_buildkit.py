"""Building: the client that can, the exact command, and what its progress says."""

from dataclasses import replace
from pathlib import Path

import pytest

from stackyard.build import buildkit, recipe
from stackyard.build.buildkit import Client, Progress, arguments, find_client
from stackyard.build.catalog import resolve
from stackyard.build.mirrors import CallerSettings
from stackyard.system.errors import BuildError, CommandError, EngineError
from tests.unit import samples

NOBODY = CallerSettings(secrets={}, wheel_folders=(), proxies={})


def made():
    image = resolve(samples.definitions(), "toy", "cpu")
    files = dict.fromkeys((*recipe.INSIDE, *image.locks), "text")
    return recipe.make_plan(
        image, files, base_image="base:1", content=recipe.BaseContent(digest="sha256:1")
    )


# The client


OLD = "Docker version 20.10.24, build 297e128"
NEW = "Docker version 27.3.1, build ce12230"


@pytest.fixture
def fake(tmp_path):
    """A docker on a PATH of its own: what it says of its version, whether buildx is there."""

    def make(name, version, *, buildx=False):
        folder = tmp_path / name
        folder.mkdir()
        script = folder / "docker"
        code = 0 if buildx else 1
        script.write_text(
            "#!/bin/sh\n"
            f'[ "$1" = --version ] && echo "{version}" && exit 0\n'
            f'[ "$1 $2" = "buildx version" ] && exit {code}\n'
            "exit 9\n"
        )
        script.chmod(0o755)
        return str(folder)

    return make


@pytest.mark.usefixtures("allow_processes")
class TestFindClient:
    def test_a_client_with_buildx_builds_with_it(self, fake):
        path = fake("a", NEW, buildx=True)
        found = find_client(path)
        assert found == Client(path=f"{path}/docker", buildx=True)
        assert found.says == f"{path}/docker (buildx)"

    def test_an_old_client_builds_by_itself(self, fake):
        path = fake("a", OLD)
        found = find_client(path)
        assert found == Client(path=f"{path}/docker", buildx=False)
        assert found.says == f"{path}/docker (DOCKER_BUILDKIT=1)"

    def test_the_first_that_can_is_taken(self, fake):
        bare, old, new = fake("a", NEW), fake("b", OLD), fake("c", NEW, buildx=True)
        assert find_client(f"{bare}:{old}:{new}").path == f"{old}/docker"
        assert find_client(f"{bare}:{new}:{old}:{new}").path == f"{new}/docker"

    @pytest.mark.parametrize("version", [NEW, "Docker version 18.09.1, build x", "podman 4"])
    def test_a_client_that_cannot_is_named_with_what_it_lacks(self, fake, version):
        path = fake("a", version)
        with pytest.raises(EngineError) as caught:
            find_client(path)
        assert caught.value.what == "no docker client here can build with BuildKit"
        assert caught.value.why == f"{path}/docker: {version}: no buildx plugin"
        assert "apt-get install docker.io" in caught.value.hint

    @pytest.mark.parametrize("buildx", [True, False])
    def test_a_docker_that_cannot_be_started_does_not_hide_the_next(self, fake, tmp_path, buildx):
        broken = tmp_path / "broken"
        broken.mkdir()
        (broken / "docker").write_text("#!/no/such/interpreter\n")
        (broken / "docker").chmod(0o755)
        path = fake("b", OLD, buildx=buildx)
        assert find_client(f"{broken}:{path}").path == f"{path}/docker"


@pytest.mark.parametrize("path", ["", "/no/such/folder", ":"])
def test_without_any_docker_that_is_said(path):
    with pytest.raises(EngineError) as caught:
        find_client(path)
    assert caught.value.why == "there is no docker on PATH"


# The command


def test_steps_get_the_packages_of_their_base():
    client, plan = Client(path="d", buildx=True), replace(made(), packages="stackyard/packages:x")
    assert "PACKAGES=stackyard/packages:x" in arguments(plan, client, "t", NOBODY, Path("/s"))
    assert "PACKAGES" not in " ".join(arguments(made(), client, "t", NOBODY, Path("/s")))


def test_the_command_is_exact():
    found = made()
    caller = CallerSettings(
        secrets={"uv.toml": b"x", "ca.pem": b"y"},
        wheel_folders=(),
        proxies={"https_proxy": "http://proxy", "HTTP_PROXY": "http://proxy"},
    )
    client = Client(path="/usr/bin/docker", buildx=True)
    assert arguments(found, client, "tools:1", caller, Path("/s")) == [
        "/usr/bin/docker", "buildx", "build", "--load",
        "--progress=plain", "-f", "images/toy/cpu.Dockerfile", "-t", "stackyard/toy:cpu",
        "--build-arg", "BASE=base:1", "--build-arg", "TOOLS=tools:1",
        "--build-arg", "HTTP_PROXY", "--build-arg", "https_proxy",
        "--label", "org.opencontainers.image.base.digest=sha256:1",
        "--label", "org.opencontainers.image.base.name=stackyard/base:cpu",
        "--label", "org.opencontainers.image.ref.name=toy-cpu",
        "--label", "org.opencontainers.image.title=stackyard/toy",
        "--label", f"org.opencontainers.image.version={samples.stack().packages['alpha']}",
        "--label", "stackyard.base=cpu",
        "--label", "stackyard.base.digest=sha256:1",
        "--label", "stackyard.fixes=alpha-old",
        "--label", f"stackyard.recipe={found.recipe}",
        "--label", "stackyard.stack=toy",
        "--secret", "id=ca.pem,src=/s/ca.pem",
        "--secret", "id=uv.toml,src=/s/uv.toml",
        "-",
    ]  # fmt: skip


def test_without_buildx_the_same_is_asked_of_the_client_itself():
    new = arguments(made(), Client(path="d", buildx=True), "t", NOBODY, Path("/s"))
    old = arguments(made(), Client(path="d", buildx=False), "t", NOBODY, Path("/s"))
    assert old[:2] == ["d", "build"]
    assert old[2:] == new[4:]


def test_a_build_from_a_bundle_has_no_network():
    client = Client(path="d", buildx=False)
    without = arguments(made(), client, "t", NOBODY, Path("/s"))
    offline = arguments(made(), client, "t", NOBODY, Path("/s"), offline=True)
    at = offline.index("--network")
    assert offline[at : at + 2] == ["--network", "none"]
    assert offline[:at] + offline[at + 2 :] == without
    fresh = arguments(made(), client, "t", NOBODY, Path("/s"), fresh=True)
    assert [word for word in fresh if word != "--no-cache"] == without
    assert len(fresh) == len(without) + 1


# The progress


def progress(*lines):
    steps = []
    found = Progress(steps.append)
    for line in lines:
        found.line(line)
    return found, steps


def test_steps_are_told_once_as_they_begin():
    _, steps = progress(
        "#1 [internal] load build definition from cpu.Dockerfile",
        "#1 transferring dockerfile: 1kB done",
        "#5 [text 1/2] RUN first",
        "#6 [image 2/3] COPY a b",
        "#5 [text 1/2] RUN first",
        "#5 DONE 1.0s",
        "#7 CACHED",
    )
    assert steps == [
        "[internal] load build definition from cpu.Dockerfile",
        "[text 1/2] RUN first",
        "[image 2/3] COPY a b",
    ]


def test_the_failed_step_is_named_without_its_mounts_with_what_it_said():
    found, _ = progress(
        "#5 [text 1/2] RUN --mount=type=tmpfs,target=/mnt --mount=type=bind,from=x . build",
        "#6 [other 1/1] RUN fine",
        "#6 0.100 fine",
        "#5 0.200 first line",
        "#6 0.250 fine again",
        "#5 0.300 cannot find it",
        "#5 ERROR: process did not complete: exit code: 1",
        "#6 ERROR: canceled",
    )
    assert found.failed_step() == "[text 1/2] RUN . build"
    assert found.last_lines() == "first line\ncannot find it"


def test_only_the_last_lines_of_a_failed_step_are_kept():
    said = [f"#5 {n}.000 line {n}" for n in range(40)]
    found, _ = progress("#5 [a 1/1] RUN x", *said, "#5 ERROR: exit code: 1")
    assert found.last_lines().splitlines() == [f"line {n}" for n in range(15, 40)]


def test_a_build_that_reached_no_step_says_so():
    found, steps = progress("error: cannot connect", "")
    assert (found.failed_step(), found.last_lines(), steps) == ("no step was reached", "", [])


def test_a_build_that_ends_while_a_step_runs_says_which_was_begun_last():
    found, _ = progress("#5 [a 1/2] RUN x", "#6 [a 2/2] RUN --mount=type=cache y", "#6 0.1 going")
    assert found.failed_step() == "the last step begun was [a 2/2] RUN y"


# The whole


def test_a_build_gets_its_context_on_standard_input_and_its_secrets_as_private_files(monkeypatch):
    seen = {}

    def run(argv, *, env, stdin, timeout, on_line):
        seen.update(argv=argv, env=env, stdin=stdin)
        (source,) = [word for word in argv if word.startswith("id=uv.toml")]
        path = Path(source.partition("src=")[2])
        seen.update(secret=path.read_bytes(), mode=path.stat().st_mode & 0o777, path=path)
        Path(argv[argv.index("--iidfile") + 1]).write_text("sha256:abc\n")

    monkeypatch.setattr(buildkit.process, "run", run)
    proxies = {"https_proxy": "http://me:pw@proxy"}
    caller = CallerSettings(secrets={"uv.toml": b"hunter2"}, wheel_folders=(), proxies=proxies)
    client = Client(path="docker", buildx=False)
    assert buildkit.build(made(), client, "t", caller, print) == "sha256:abc"
    assert (seen["secret"], seen["mode"]) == (b"hunter2", 0o600)
    assert not seen["path"].exists()
    here = {"DOCKER_CONTEXT": "default", "BUILDX_BUILDER": "default"}
    assert seen["env"] == {"DOCKER_BUILDKIT": "1", **here, **proxies}
    context = {path: text.encode() for path, text in made().context.items()}
    assert seen["stdin"] == buildkit.pack(context)
    assert b"hunter2" not in seen["stdin"]


def failing(*lines):
    def run(argv, *, on_line, **_):
        for line in lines:
            on_line(line)
        raise CommandError("docker failed", code=1, why="all that was said")

    return run


@pytest.mark.parametrize(
    ("why", "failures", "tried"),
    [
        ("failed to compute cache key: flightcontrol: exceeded retry timeout", 1, 2),
        ("#12 ERROR: rpc error: code = Internal desc = unexpected EOF", 1, 2),
        ("#5 DONE 0.0s\nno active sessions", 2, 3),
        ("#5 DONE 0.0s\nno active sessions", 3, 3),
        ("no such file", 3, 1),
    ],
)
def test_a_build_is_tried_again_where_buildkit_gave_up(monkeypatch, why, failures, tried):
    asked = []

    def run(argv, *, on_line, **_):
        asked.append(argv)
        if len(asked) <= failures:
            raise CommandError("docker failed", code=1, why=why)
        Path(argv[argv.index("--iidfile") + 1]).write_text("sha256:abc\n")

    monkeypatch.setattr(buildkit.process, "run", run)
    wanted = (made(), Client(path="docker", buildx=True), "t", NOBODY, lambda step: None)
    if failures < 3:
        assert buildkit.build(*wanted) == "sha256:abc"
    else:
        with pytest.raises(BuildError):
            buildkit.build(*wanted)
    assert len(asked) == tried


@pytest.mark.parametrize(
    ("lines", "step", "why"),
    [
        (["#5 [a 1/1] RUN x", "#5 0.1 no room", "#5 ERROR: exit code: 1"],
         "[a 1/1] RUN x", "no room"),
        (["cannot connect"], "no step was reached", "all that was said"),
    ],
)  # fmt: skip
def test_a_failed_build_names_step_reason_and_what_to_type(monkeypatch, lines, step, why):
    monkeypatch.setattr(buildkit.process, "run", failing(*lines))
    with pytest.raises(BuildError) as caught:
        buildkit.build(made(), Client(path="docker", buildx=True), "t", NOBODY, lambda step: None)
    assert caught.value.what == f"stackyard/toy:cpu could not be built: {step}"
    assert caught.value.why == why
    assert caught.value.hint.endswith("then: invoke build toy --base cpu")
