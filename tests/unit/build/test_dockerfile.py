"""What goes into the rendered files; their whole text is tests/golden's."""

import json

import pytest

from stackyard.build import dockerfile
from stackyard.build.catalog import resolve
from stackyard.definitions.spec import LeftOut
from tests.unit import samples


def files(base="cpu", **changes):
    return dockerfile.render_files(resolve(samples.definitions(**changes), "toy", base))


def text(base="cpu", **changes):
    return files(base, **changes)[f"images/toy/{base}.Dockerfile"]


def test_every_rendered_file_has_its_place():
    assert sorted(files()) == [
        "images/toy/cpu.Dockerfile",
        "images/toy/fixes.json",
    ]
    assert dockerfile.image_tag("toy", "cpu") == "stackyard/toy:cpu"


def test_rendering_twice_gives_the_same_bytes():
    assert files() == files()


def test_no_line_of_a_dockerfile_is_left_unfinished():
    for base in ("cpu", "gpu"):
        lines = text(base).splitlines()
        assert not [n for n, line in enumerate(lines[:-1]) if line.endswith("\\")
                    and not lines[n + 1].strip()]  # fmt: skip


def test_a_base_of_packages_shares_one_layer_and_a_pulled_one_stays_as_it_is():
    assert "install_locked /mnt/base.lock https://torch.example/cpu \\\n" in text()
    assert "install_locked /mnt/base.lock" not in text("gpu")
    assert "# torch and everything else in the base stay as they are.\n" in text("gpu")


def test_parts_of_the_shared_layer_are_layers_of_their_own_before_the_rest():
    found = text(bases={"cpu": samples.base(torch_layers=(("nvidia-*", "triton"), ("numpy",)))})
    steps = [line for line in found.splitlines() if "some_of" in line or "install_locked" in line]
    assert [step.strip().rstrip(" \\") for step in steps][:5] == [
        "&& some_of /mnt/base.lock 'nvidia-*' triton > /mnt/some.lock",
        "&& install_locked /mnt/some.lock https://torch.example/cpu",
        "&& some_of /mnt/base.lock numpy > /mnt/some.lock",
        "&& install_locked /mnt/some.lock https://torch.example/cpu",
        "&& install_locked /mnt/base.lock https://torch.example/cpu",
    ]


def test_system_packages_are_installed_only_where_some_are_missing():
    assert "apt_install rsync\n" in text()
    assert "apt_install" not in text(stacks={"toy": samples.stack(system=())})


def test_steps_on_a_base_of_packages_install_its_locked_ones():
    found = text(wheels={"beta": samples.wheel(compiler=True)})
    assert "ARG PACKAGES=stackyard/packages:cpu\n" in found
    steps = [step for step in found.split("\nRUN ") if "apt_install" in step or "unpack_" in step]
    assert len(steps) == 3
    assert all("from=debian,target=/mnt/packages \\\n" in step for step in steps)
    assert found.count("from=debian") == 3
    for base in ("gpu", "far"):
        other = text(base, bases={"gpu": samples.pulled(), "far": samples.carried()})
        assert "PACKAGES" not in other and "/mnt/packages" not in other


def test_a_compiler_is_there_only_for_wheels_that_need_one():
    assert "AS compiler" not in text()
    found = text(wheels={"beta": samples.wheel(compiler=True)})
    assert "FROM compiler AS wheel-beta\n" in found
    assert "apt_install g++\n" in found


def test_a_wheel_that_needs_torch_sees_the_shared_layer():
    site = "/usr/local/lib/python3.11/dist-packages"
    found = text(wheels={"beta": samples.wheel(torch=True)})
    assert f"--mount=type=bind,from=torch,source={site},target={site} \\\n" in found
    assert f"export TORCH_SITE={site} && " in found
    assert site not in text()


def far(**changes):
    return text("far", bases={"far": samples.carried()}, **changes)


def test_packages_of_another_distribution_are_unpacked_with_what_they_need():
    assert ". /mnt/build.sh && unpack_system tini rsync libwrap0\n" in far()
    assert "apt_install" not in far()


def test_a_compiler_that_the_base_has_needs_no_stage():
    found = far(wheels={"beta": samples.wheel(compiler=True)})
    assert "AS compiler" not in found
    assert "FROM base AS wheel-beta\n" in found


def test_a_bases_own_torch_is_there_for_the_wheels_that_want_it_and_hidden_from_others():
    wants = far(wheels={"beta": samples.wheel(torch=True)})
    assert "TORCH_SITE" not in wants
    assert "from=torch" not in wants
    assert "HIDE_TORCH" not in wants
    assert "export HIDE_TORCH=1 && . /mnt/build.sh" in far()
    assert "HIDE_TORCH" not in text()


def test_a_build_takes_of_its_wheels_lock_what_the_base_lacks():
    text = samples.locked("beta==3.0", "numpy==2.4.6", "setuptools==80.0.0")
    locks = {**samples.locks(), "images/wheels/beta.lock": text}
    found = {"cpu": files(locks=locks)["images/toy/cpu.Dockerfile"], "far": far(locks=locks)}
    for base, needs in (("cpu", "numpy setuptools"), ("far", "setuptools")):
        assert (
            "    && some_of /mnt/wheel.lock beta > /mnt/sdist.lock \\\n"
            f"    && some_of /mnt/wheel.lock {needs} > /mnt/build.lock \\\n"
            "    && build_wheel /mnt/sdist.lock /mnt/build.lock "
        ) in found[base]


def test_what_a_base_provides_is_asserted_before_anything_is_installed():
    assert "    && assert_provided numpy torch==2.11.0 \\\n    && install_locked" in far()
    assert "assert_provided torch==2.1.0a0+nv \\\n" in text("gpu")
    assert "assert_provided" not in text()


def test_a_stack_without_wheels_of_its_own_installs_none():
    assert "install_built" in text()
    assert "install_built" not in text(stacks={"toy": samples.stack(builds=())})


def test_a_base_that_nobody_built_says_so_at_the_top():
    assert "NEVER BUILT" not in text()
    found = text(bases={"cpu": samples.base(never_built="its registry is far")})
    assert found.splitlines()[1] == "# NEVER BUILT: its registry is far"


@pytest.mark.parametrize(
    "value",
    ["plain", "two words", 'say "x"', "back\\slash", "it's", "a&b", "<x>", "ünïcode", "a$b"],
)
def test_an_environment_value_is_one_quoted_word_of_the_dockerfile(value):
    found = text(stacks={"toy": samples.stack(env={"TOY": value})})
    quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    assert f'TOY="{quoted}"\n' in found


def test_values_that_reach_a_shell_are_quoted():
    wheel = samples.wheel(env={"FLAGS": "-O2 $(id)"})
    found = text(wheels={"beta": wheel}, stacks={"toy": samples.stack(system=("a b; id",))})
    assert "export FLAGS='-O2 $(id)' && " in found
    assert "apt_install 'a b; id'\n" in found


def rules(found, stage="installed"):
    of_wheel = "images/wheels/beta.cpu.fixes.json"
    return json.loads(found["images/toy/fixes.json" if stage == "installed" else of_wheel])


def test_fixes_are_written_as_data_for_the_build():
    rule = {
        "file": "alpha/a.py", "pattern": "^old$", "replacement": "new", "count": 1,
        "fixed": "^new$",
    }  # fmt: skip
    assert rules(files()) == [{"id": "alpha-old", "stage": "installed", "replace": [rule]}]


def test_a_stacks_fixes_are_one_file_and_a_dockerfile_names_those_that_apply():
    fixes = {
        "alpha-old": samples.fix(devices=("cpu",)),
        "alpha-gpu": samples.fix(id="alpha-gpu", devices=("cuda",)),
    }
    stacks = {"toy": samples.stack(fixes=("alpha-old", "alpha-gpu"))}
    cpu, gpu = (files(base, fixes=fixes, stacks=stacks) for base in ("cpu", "gpu"))
    assert cpu["images/toy/fixes.json"] == gpu["images/toy/fixes.json"]
    assert [fix["id"] for fix in rules(cpu)] == ["alpha-old", "alpha-gpu"]
    assert "        --only alpha-old \\\n" in cpu["images/toy/cpu.Dockerfile"]
    assert "        --only alpha-gpu \\\n" in gpu["images/toy/gpu.Dockerfile"]


def test_where_no_fix_applies_none_is_mounted():
    found = text("gpu", fixes={"alpha-old": samples.fix(devices=("cpu",))})
    step = found.split("FROM packages AS image\n")[1]
    assert "fixes" not in step.partition("\nRUN ")[0] and "&& warm alpha" in step


def test_a_fix_without_replacements_is_no_work_for_the_build():
    fix = samples.fix(remedy=samples.remedy(replace=(), env={"A": "1"}))
    found = files(fixes={"alpha-old": fix})
    assert list(found) == ["images/toy/cpu.Dockerfile"]
    assert "/mnt/fixes.json" not in found["images/toy/cpu.Dockerfile"]


def test_a_fix_of_a_source_goes_to_the_stage_that_builds_it():
    source = samples.fix(id="beta-build", versions={"beta": "==3.0"},
                         remedy=samples.remedy(stage="source"))  # fmt: skip
    found = files(
        fixes={"alpha-old": samples.fix(), "beta-build": source},
        wheels={"beta": samples.wheel(fixes=("beta-build",))},
    )
    assert [fix["id"] for fix in rules(found)] == ["alpha-old"]
    assert [fix["id"] for fix in rules(found, "source")] == ["beta-build"]
    step = "source=images/wheels/beta.cpu.fixes.json,target=/mnt/fixes.json"
    assert step in found["images/toy/cpu.Dockerfile"]
    assert (
        "build_wheel /mnt/sdist.lock /mnt/build.lock /mnt/fixes.json"
        in (found["images/toy/cpu.Dockerfile"])
    )
    assert "build_wheel /mnt/sdist.lock /mnt/build.lock /dev/null" in text()


def leaving(**changes):
    entries = (
        LeftOut(path="alpha/bin", why="unused", kept={"alpha/bin/a": "used"}),
        LeftOut(path="**/tests", why="tests", kept={}),
    )
    return {"common": samples.common(left_out=entries), **changes}


def test_what_is_left_out_goes_in_the_step_that_brings_it_and_before_modules_are_imported():
    call = (
        "    && python3 /mnt/leave_out.py --before /mnt/before alpha/bin '**/tests' \\\n"
        "        --keep alpha/bin/a \\\n"
    )
    found = text(**leaving())
    assert found.count(call) == 2
    for step in found.split("FROM ")[1:]:
        if "leave_out.py" in step:
            assert step.index("inventory > /mnt/before") < step.index("&& install_locked")
            assert step.index("&& install_locked") < step.index("&& python3 /mnt/leave_out.py")
    # What is left out of the stack's packages is gone before modules are imported, a step later.
    assert found.rindex(call) < found.rindex("&& warm ")
    assert text("gpu", **leaving()).count(call) == 1


def test_where_nothing_is_left_out_nothing_is_called():
    assert "leave_out" not in text()


def test_every_secret_of_a_build_is_mounted_in_every_step_that_installs():
    found = text()
    for name in dockerfile.SECRETS:
        mount = f"--mount=type=secret,id={name},target=/mnt/secrets/{name} \\\n"
        assert found.count(mount) == found.count("from=tools,target=/mnt/tools \\\n") > 1


def test_fixes_are_applied_in_a_step_of_their_own_that_reaches_nothing_else():
    """`invoke prove` starts from the stage before it."""
    before, after = text().split("FROM packages AS image\n")
    step = after.partition("\n\n")[0]
    assert "apply_fixes.py /mnt/fixes.json" in step
    assert "apply_fixes" not in before.split("wheel-")[-1]
    assert "type=secret" not in step and "type=cache" not in step


def test_what_an_image_has_bash_read_before_scripts_is_not_read_by_build_steps():
    assert 'SHELL ["/usr/bin/env", "-u", "BASH_ENV", "/bin/bash", "-euo"' in text("gpu")
    assert 'SHELL ["/bin/bash", "-euo"' in text("cpu")


def test_only_what_a_lock_replaces_may_change_in_a_base():
    bases = {"gpu": samples.pulled(replaceable=("regex", "protobuf"))}
    locks = {"images/toy/gpu.lock": samples.locked("alpha==1.2.0", "regex==2")}
    assert "&& assert_unchanged /mnt/before regex\n" in text("gpu", bases=bases, locks=locks)
    assert "&& assert_unchanged /mnt/before\n" in text("gpu", locks=locks)
