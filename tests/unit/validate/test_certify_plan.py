"""Group tests name every planted fault, whatever it is and wherever it stands."""

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackyard.system.errors import UsageError
from stackyard.validate.certify.plan import (
    GPU,
    HOST,
    LINK,
    UNEXPLAINED,
    Group,
    isolate,
)
from tests.unit.definitions.test_fuzz_definitions import examples

FEW = 60


def fleet(count, gpus=1):
    return {f"h{number}": tuple(range(gpus)) for number in range(count)}


def play(hosts, is_bad, limit=400):
    """Play all rounds against `is_bad`; return the faults and the number of rounds."""
    search, rounds = isolate(hosts), 0
    try:
        wanted = next(search)
        while True:
            rounds += 1
            assert rounds < limit
            taken = [name for group in wanted for name in group]
            assert wanted and len(taken) == len(set(taken)), "groups of a round share a host"
            # A host and one of its GPUs cannot be tested at the same time either.
            assert not {name.partition(":")[0] for name in taken if ":" in name} & set(taken)
            wanted = search.send({group: is_bad(group) for group in wanted})
    except StopIteration as ended:
        return ended.value.faults, rounds


def planted(alone=(), joined=(), links=(), gpus=()):
    """Return the test of groups in which these are bad."""
    alone, joined, links = set(alone), set(joined), [frozenset(link) for link in links]

    def is_bad(group):
        group = set(group)
        whole = {name.partition(":")[0] for name in gpus} & group
        return bool(
            alone & group
            or (joined & group and len(group) > 1)
            or any(link <= group for link in links)
            or set(gpus) & group
            or whole
        )

    return is_bad


def named(faults):
    return {(fault.kind, frozenset(fault.names)) for fault in faults}


def bound(count):
    return 2 * math.ceil(math.log2(count)) + 4


@st.composite
def faults_among(draw, most, least=1):
    count = draw(st.one_of(st.integers(8, 40), st.integers(41, 512), st.just(512)))
    kinds = draw(st.lists(st.sampled_from(["alone", "joined", "links"]), min_size=least,
                          max_size=most))  # fmt: skip
    members = st.integers(0, count - 1)
    found = {"alone": set(), "joined": set(), "links": set()}
    hosts = set()
    for kind in kinds:
        if kind == "links":
            pair = draw(st.sets(members, min_size=2, max_size=2))
            found[kind].add(frozenset(f"h{n}" for n in pair))
        else:
            host = f"h{draw(members)}"
            if host not in hosts:
                found[kind].add(host)
            hosts.add(host)
    # A link of a bad host cannot be seen: every group with it is bad anyway.
    found["links"] = {link for link in found["links"] if not link & hosts}
    return count, found


def expected(found):
    hosts = {(HOST, frozenset([host])) for host in (*found["alone"], *found["joined"])}
    return hosts | {(LINK, link) for link in found["links"]}


@examples(FEW)
@given(faults_among(1))
def test_one_fault_is_named_within_the_bound(case):
    count, found = case
    faults, rounds = play(fleet(count), planted(**found))
    assert named(faults) == expected(found)
    assert rounds <= bound(count)


@examples(FEW)
@given(faults_among(3))
def test_up_to_three_faults_are_named_and_nothing_else(case):
    count, found = case
    faults, rounds = play(fleet(count), planted(**found))
    assert named(faults) == expected(found)
    assert rounds <= 3 * bound(count) + 4


@pytest.mark.parametrize("count", range(2, 18))
def test_every_single_fault_of_a_small_fleet_is_named_within_the_bound(count):
    hosts = list(fleet(count))
    cases = [{"alone": [host]} for host in hosts]
    cases += [{"links": [pair]} for pair in combinations(hosts, 2)]
    cases += [{"joined": [host]} for host in hosts] if count > 2 else []
    for case in cases:
        faults, rounds = play(fleet(count), planted(**case))
        (fault,) = faults
        ((kind, names),) = ((LINK if k == "links" else HOST, v) for k, v in case.items())
        assert (fault.kind, set(fault.names)) == (kind, {*names[0]} if kind == LINK else {*names})
        assert rounds <= bound(count), case


@pytest.mark.parametrize(("count", "faults"), [(4, 2), (5, 2), (6, 3), (7, 3), (8, 3)])
def test_several_bad_adapters_of_a_small_fleet_leave_no_link_accused(count, faults):
    for hosts in combinations(fleet(count), faults):
        found, _ = play(fleet(count), planted(joined=hosts))
        assert named(found) == {(HOST, frozenset([host])) for host in hosts}, hosts


def test_hosts_without_a_fault_pass_in_one_round():
    assert play(fleet(512), planted()) == ((), 1)
    assert play(fleet(1), planted()) == ((), 1)


def test_three_links_of_one_host_are_links_and_a_bad_adapter_is_a_host():
    star = [("h5", other) for other in ("h1", "h9", "h30")]
    faults, _ = play(fleet(32), planted(links=star))
    assert named(faults) == {(LINK, frozenset(link)) for link in star}
    (fault,), _ = play(fleet(32), planted(joined=["h5"]))
    assert fault.kind == HOST and fault.why.startswith("good alone, and bad with ")
    assert len(fault.why.split(", ")) == 5


def test_the_link_between_two_hosts_cannot_be_told_from_an_adapter():
    (fault,), _ = play(fleet(2), planted(joined=["h1"]))
    assert fault.kind == LINK
    assert "h0 and h1 had no other partner" in fault.why


@examples(FEW)
@given(st.integers(1, 64), st.integers(2, 8), st.data())
def test_a_gpu_or_a_link_between_gpus_is_named_in_place_of_its_host(count, gpus, data):
    host = f"h{data.draw(st.integers(0, count - 1))}"
    chosen = data.draw(st.sets(st.integers(0, gpus - 1), min_size=1, max_size=2))
    names = [f"{host}:{index}" for index in sorted(chosen)]
    if len(chosen) == 1:
        faults, rounds = play(fleet(count, gpus), planted(gpus=names))
    else:
        inner = planted(links=[names])
        faults, rounds = play(fleet(count, gpus), lambda group: host in group or inner(group))
    assert named(faults) == {(GPU if len(chosen) == 1 else LINK, frozenset(names))}
    assert rounds <= bound(count * gpus)


def test_a_host_whose_gpus_are_good_in_every_group_is_named_itself():
    (fault,), _ = play(fleet(4, 4), planted(alone=["h2"]))
    assert (fault.kind, fault.names) == (HOST, ("h2",))


def test_all_bad_gpus_of_all_bad_hosts_are_named():
    faults, _ = play(fleet(8, 8), planted(gpus=["h1:3", "h1:4", "h6:0"]))
    assert named(faults) == {(GPU, frozenset([name])) for name in ("h1:3", "h1:4", "h6:0")}


@examples(FEW)
@given(st.integers(2, 64), st.integers(0, 2**32))
def test_results_that_fit_no_fault_end_and_accuse_no_host_that_was_never_seen_bad(count, seed):
    """A link that drops once a while: every group is bad or good by chance."""
    import random

    chance, results = random.Random(seed), {}

    def is_bad(group):
        results[group] = chance.random() < 0.3
        return results[group]

    faults, _ = play(fleet(count), is_bad, limit=10_000)
    for fault in faults:
        if fault.kind == HOST and fault.why == "bad alone":
            assert results[Group(fault.names)]
        if fault.kind == LINK:
            assert results[Group(fault.names)]
    assert faults or not any(results.values())


def test_a_group_that_was_bad_once_is_reported():
    first = Group(fleet(16))
    (fault,), _ = play(fleet(16), lambda group: group == first)
    assert (fault.kind, len(fault.names)) == (UNEXPLAINED, 16)


def test_no_hosts_are_refused():
    with pytest.raises(UsageError, match="there is no host to test"):
        next(isolate({}))
