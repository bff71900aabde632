"""Who passes a parcel to whom, and what each of them may do."""

import json

import pytest

from stackyard.fleet import relay
from stackyard.fleet.relay import Keys, Stop, successors
from stackyard.parcel import Parcel


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


def parcel():
    layers = [f"sha256:{letter * 64}" for letter in "abc"]
    config = json.dumps({"rootfs": {"diff_ids": ["1", "2", "3"]}}).encode()
    sizes = (40 * 2**20 + 1, 30 * 2**20, 7)
    return Parcel(config=config, layers=tuple(layers), carried=tuple(zip(layers, sizes)))  # noqa: B905


def test_nothing_is_given_to_an_engine_before_it_was_checked():
    whole = parcel()
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
    whole = parcel()
    files = relay.plan(whole, in_parts=False)
    steps = [line.split() for line in files["plan"].decode().splitlines()]
    assert [step[0] for step in steps] == ["sum", "sum", "sum", "image"]
    assert steps[-1] == ["image", str(whole.body), str(whole.body), str(whole.size)]
    assert set(files) == {"plan"}
