"""A node's agent without a node: the words of its ranks, and what it learns of them."""

import json
import os

import pytest

from tests.unit.beside import agent, watched


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when they are told to."""
    now = [1000.0]
    monkeypatch.setattr(agent.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def rank(tmp_path, clock):
    """Rank 3 writes; what is told of it: lines as they are, bars in brackets."""
    path = tmp_path / "rank3.log"
    path.write_bytes(b"")
    words = watched.Words(path)

    def shown(entries):
        assert {entry["rank"] for entry in entries} <= {3}
        return [[e["text"]] if e.get("bar") else e["text"] for e in entries]

    def write(data, *, limit=10**6):
        with path.open("ab") as file:
            file.write(data)
        clock[0] += 1
        return shown(words.read(limit))

    write.finish = lambda: shown(words.finish())
    return write


# Words


def test_lines_are_told_once_and_whole(rank):
    assert rank(b"one\ntwo\nthr") == ["one", "two"]
    assert rank(b"ee\n") == ["three"]
    assert rank(b"") == []


def test_empty_lines_and_blanks_at_the_end_are_not_told(rank):
    assert rank(b"\n\n  \nword  \n\n") == ["word"]


def test_lines_of_other_systems_are_lines(rank):
    assert rank(b"one\r\ntwo\r\n") == ["one", "two"]


def test_a_line_break_that_comes_in_two_parts_is_one(rank):
    rank(b"one\r")
    assert [said for said in rank(b"\ntwo\n") if isinstance(said, str)] == ["one", "two"]


def test_of_a_bar_only_the_latest_state_is_told(rank):
    rank(b"\r  0%|   |")
    assert rank(b"\r 10%|   |\r 20%|#  |") == [[" 20%|#  |"]]
    assert rank(b"\r 30%|#  |") == [[" 30%|#  |"]]


def test_a_bar_is_told_every_now_and_then_only(rank, clock):
    rank(b"\r 0%")
    assert rank(b"\r 1%") == [[" 1%"]]
    clock[0] -= 0.8  # 0.2 s later
    assert rank(b"\r 2%") == []
    clock[0] -= 1
    assert rank(b"\r 3%") == []
    assert rank(b"\r 4%") == [[" 4%"]]


def test_a_bars_last_state_stays_as_a_line(rank):
    rank(b"\r 50%|##  |")
    assert rank(b"\r100%|####|\ndone\n") == ["100%|####|", "done"]
    assert rank(b"") == []


def test_a_bar_that_ends_in_its_return_is_told(rank):
    assert rank(b" 10%\r 20%\r") == [[" 20%"]]


def test_lines_between_the_states_of_a_bar_are_lines(rank):
    rank(b"\r 10%")
    assert rank(b"\nloss 3.1\n\r 20%") == [" 10%", "loss 3.1"]


def test_half_a_line_is_told_at_the_end(rank):
    assert rank(b"Killed") == []
    assert rank.finish() == ["Killed"]
    assert rank.finish() == []


def test_a_very_long_line_is_told_in_pieces_that_lose_nothing(rank):
    long = "a" * 3999 + "é" * 3000
    for end in (b"\n", b""):
        said = rank(long.encode() + end) + (rank.finish() if not end else [])
        assert "".join(said) == long
        assert all(len(piece.encode()) <= watched.LINE_BYTES for piece in said)


def test_a_long_line_without_an_end_is_not_kept(rank):
    assert len(rank(b"x" * 10_000)) == 2
    assert len("".join(rank.finish())) == 2000


def test_what_is_no_text_is_shown_as_such(rank):
    assert rank(b"\xff\xfe ok \xc3\n") == ["�� ok �"]
    assert rank(b"\x80" * 9000 + b"\n") == ["�" * 3996, "�" * 3996, "�" * 1008]


def test_a_rank_that_writes_much_is_read_bit_by_bit(rank):
    assert rank(b"one\ntwo\n", limit=5) == ["one"]
    assert rank(b"", limit=5) == ["two"]


def test_all_that_is_left_is_told_at_the_end(rank):
    lines = [f"line {n}" for n in range(9000)]
    assert rank("\n".join(lines).encode(), limit=10) == ["line 0"]
    assert rank.finish() == lines[1:]


def test_of_too_much_the_end_is_told_and_where_the_rest_is(rank, monkeypatch):
    monkeypatch.setattr(watched, "LAST_BYTES", 12)
    rank(b"a\n", limit=0)
    rank(b"x" * 100 + b"\nTraceback\n", limit=0)
    first, *rest = rank.finish()
    assert first.startswith("[101 bytes are only in ") and first.endswith("rank3.log]")
    assert rest == ["x", "Traceback"]


def test_a_file_that_is_gone_says_nothing(tmp_path):
    words = watched.Words(tmp_path / "rank0.log")
    assert words.read(100) == [] == words.finish()


# Records


def test_records_come_in_whole_lines_however_long(tmp_path):
    path = tmp_path / "rank1.jsonl"
    records = watched.Records(path)
    assert records.read() == []
    path.write_text('{"event": "start"}\n{"event"')
    assert records.read() == [{"rank": 1, "record": '{"event": "start"}'}]
    path.write_text('{"event": "start"}\n{"event": "' + "x" * 9000 + '"}\n')
    assert [len(entry["record"]) for entry in records.read()] == [9013]


# Ranks without a launcher, and stopped processes


@pytest.fixture
def processes(monkeypatch):
    """A made-up node: its training processes, by PID: parent, and whether RANK is set.

    None in its place is a process that is ending: it shows no environment any more.
    """
    there = {}
    monkeypatch.setattr(
        agent.strays, "strays", lambda job="": [{"pid": pid, "command": "x"} for pid in there]
    )
    monkeypatch.setattr(agent.strays, "parent", lambda pid: there.get(pid, (0, False))[0])
    environments = {False: [b"HOME=/root"], True: [b"HOME=/root", b"RANK=0"], None: []}
    monkeypatch.setattr(
        agent, "_environment", lambda pid: environments[there.get(pid, (0, None))[1]]
    )
    return there


AGENT, RANK, HELPER = 10, 11, 12


def seen(keeper, kind="orphan"):
    return [event["pid"] for event in keeper.look() if event["event"] == kind]


def test_a_rank_whose_launcher_is_gone_is_an_orphan_at_the_second_look(processes):
    keeper = agent.Keeper(6.0)
    processes.update({AGENT: (1, False), RANK: (AGENT, True)})
    assert keeper.look() == []
    del processes[AGENT]
    processes[RANK] = (1, True)
    assert seen(keeper) == []
    assert seen(keeper) == [RANK]


def test_a_rank_that_ends_with_its_launcher_is_none(processes):
    keeper = agent.Keeper(6.0)
    processes.update({AGENT: (1, False), RANK: (AGENT, True)})
    keeper.look()
    del processes[AGENT]
    processes[RANK] = (1, True)
    keeper.look()
    processes.clear()
    assert seen(keeper) == []


def test_what_a_rank_started_is_no_orphan_when_the_rank_has_ended(processes):
    keeper = agent.Keeper(6.0)
    processes.update({AGENT: (1, False), RANK: (AGENT, True), HELPER: (RANK, True)})
    keeper.look()
    del processes[RANK]
    processes[HELPER] = (1, True)
    assert [seen(keeper) for _ in range(3)] == [[], [], []]


def test_what_a_rank_started_as_it_ended_is_no_rank(processes):
    keeper = agent.Keeper(6.0)
    processes.update({AGENT: (1, False), RANK: (AGENT, None), HELPER: (RANK, True)})
    keeper.look()
    del processes[RANK]
    processes[HELPER] = (1, True)
    assert [keeper.look() for _ in range(3)] == [[], [], []]


def test_a_process_that_no_launcher_started_is_no_orphan(processes):
    keeper = agent.Keeper(6.0)
    processes.update({AGENT: (1, False), HELPER: (AGENT, False)})
    keeper.look()
    processes[HELPER] = (1, False)
    assert [seen(keeper) for _ in range(3)] == [[], [], []]


def test_a_process_that_is_stopped_for_too_long_is_told_and_one_that_goes_on_is_not(
    processes, clock, monkeypatch
):
    keeper, stopped = agent.Keeper(6.0), {RANK}
    monkeypatch.setattr(agent.strays, "stopped", lambda pid: pid in stopped)
    processes.update({AGENT: (1, False), RANK: (AGENT, True)})
    assert seen(keeper, "stopped") == []
    clock[0] += 6.0
    assert seen(keeper, "stopped") == []
    clock[0] += 0.1
    assert seen(keeper, "stopped") == [RANK]
    stopped.clear()
    assert seen(keeper, "stopped") == []
    stopped.add(RANK)
    assert seen(keeper, "stopped") == []


# The agent


@pytest.fixture
def node(tmp_path, monkeypatch, clock):
    """An agent whose line is recorded, its job's folder, and which processes run."""

    class Node:
        def __init__(self):
            self.folder = tmp_path / "demo" / "ranks"
            self.folder.mkdir(parents=True)
            self.full = self.closed = False
            self.running, self.events, self.sent = set(), [], []
            self.agent = agent.Agent(6.0)

        def write(self, text):
            self.sent.append(text)

        def lost(self, seconds):
            return ""

        def told(self):
            found, self.sent = [json.loads(text) for text in self.sent if text != "beat"], []
            return found

        def tick(self):
            clock[0] += 1
            for job in self.agent._jobs.values():
                self.agent._pass_on(job)
            assert self.agent._tick()
            return self.told()

        def take(self, text):
            self.agent._take(text)
            return self.told()

        def rank(self, number, pid):
            value = {"rank": number, "pid": pid, "world_size": "2"}
            (self.folder / f"rank{number}.json").write_text(json.dumps(value))
            self.running.add(pid)

    made = Node()
    monkeypatch.setattr(made.agent, "_line", made)
    monkeypatch.setattr(made.agent._keeper, "look", lambda: list(made.events))
    monkeypatch.setattr(agent.strays, "strays", lambda job: [{"pid": 9, "job": job}])
    monkeypatch.setattr(agent.strays, "running", lambda pid: pid in made.running)
    return made


def test_before_a_job_only_beats_are_told(node):
    assert node.tick() == []
    assert node.take("finish x") == [{"finished": "x"}]


def test_words_of_every_rank_are_passed_on_and_the_last_ones_when_it_is_over(node):
    node.take(f"watch {node.folder}")
    (node.folder / "rank0.log").write_text("zero\nhalf")
    (node.folder / "rank1.log").write_text("one\n")
    (node.folder / "rankx.log").write_text("no rank\n")
    assert node.tick() == [
        {"job": "demo", "said": [{"rank": 0, "text": "zero"}, {"rank": 1, "text": "one"}]},
    ]  # fmt: skip
    assert node.take("finish demo") == [
        {"job": "demo", "said": [{"rank": 0, "text": "half"}]}, {"finished": "demo"},
    ]  # fmt: skip


def test_a_rank_that_writes_much_does_not_silence_another(node, monkeypatch):
    monkeypatch.setattr(watched, "CHUNK_BYTES", 40)
    node.take(f"watch {node.folder}")
    (node.folder / "rank0.log").write_text("noise\n" * 100)
    (node.folder / "rank1.log").write_text("a word\n")
    said = [entry["rank"] for event in node.tick() for entry in event["said"]]
    assert said.count(1) == 1 and said.count(0) == 3


def test_a_rank_is_told_when_it_is_there_and_how_it_ended(node):
    node.take(f"watch {node.folder}")
    node.rank(0, 50)
    node.rank(1, 51)
    assert node.tick() == [
        {"job": "demo", "event": "rank", "pid": 50, "rank": 0},
        {"job": "demo", "event": "rank", "pid": 51, "rank": 1},
    ]  # fmt: skip
    assert node.tick() == []
    (node.folder / "rank0.end").write_text("ok")
    node.running.clear()
    assert node.tick() == [
        {"job": "demo", "event": "gone", "pid": 50, "rank": 0, "end": "ok"},
        {"job": "demo", "event": "gone", "pid": 51, "rank": 1, "end": ""},
    ]
    assert node.tick() == []


def test_a_rank_that_ends_between_two_looks_is_told_all_the_same(node):
    node.take(f"watch {node.folder}")
    node.rank(0, 50)
    node.running.clear()
    (node.folder / "rank0.end").write_text("RuntimeError: no")
    assert node.tick() == [
        {"job": "demo", "event": "rank", "pid": 50, "rank": 0},
        {"job": "demo", "event": "gone", "pid": 50, "rank": 0, "end": "RuntimeError: no"},
    ]


def test_how_a_rank_ended_is_told_before_its_job_is_finished(node):
    node.take(f"watch {node.folder}")
    node.rank(0, 50)
    node.tick()
    node.running.clear()
    assert node.take("finish demo") == [
        {"job": "demo", "event": "gone", "pid": 50, "rank": 0, "end": ""}, {"finished": "demo"},
    ]  # fmt: skip


def test_a_rank_that_is_started_again_is_told_again(node):
    node.take(f"watch {node.folder}")
    node.rank(0, 50)
    node.tick()
    node.running.clear()
    node.rank(0, 60)
    assert [(e["event"], e["pid"]) for e in node.tick()] == [("rank", 60), ("gone", 50)]


def test_what_became_of_fused_parts_is_told_when_it_changes(node):
    node.take(f"watch {node.folder}")
    fused = node.folder / "rank0.fused"
    fused.write_text("{")
    node.rank(0, 50)
    assert node.tick() == [{"job": "demo", "event": "rank", "pid": 50, "rank": 0}]
    for state in ("ran", "fell back"):
        parts = {"layer": {"state": state, "why": ""}}
        fused.write_text(json.dumps(parts))
        assert node.tick() == [{"job": "demo", "event": "fused", "rank": 0, "parts": parts}]
        assert node.tick() == []
    node.running.clear()
    node.rank(0, 60)  # started again: what it says is its own
    assert [event["event"] for event in node.tick()] == ["rank", "fused", "gone"]


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "{}", '{"pid": 1}', '{"pid": "a", "rank": 0}',
                                  '{"pid": null, "rank": 0}'])  # fmt: skip
def test_what_is_no_word_of_a_rank_is_passed_over(node, text):
    node.take(f"watch {node.folder}")
    (node.folder / "rank0.json").write_text(text)
    assert node.tick() == []


def test_jobs_beside_each_other_are_told_apart_until_each_is_finished(node, tmp_path):
    other = tmp_path / "other" / "ranks"
    other.mkdir(parents=True)
    for folder in (node.folder, other):
        node.take(f"watch {folder}")
        (folder / "rank0.log").write_text(f"{folder.parent.name}\n")
    said = {event["job"]: event["said"][0]["text"] for event in node.tick()}
    assert said == {"demo": "demo", "other": "other"}
    assert node.take("finish demo") == [{"finished": "demo"}]
    for folder in (node.folder, other):
        (folder / "rank0.log").write_text(f"{folder.parent.name}\nmore\n")
    assert [event["job"] for event in node.tick()] == ["other"]


def test_records_are_passed_on_with_words(node):
    node.take(f"watch {node.folder}")
    (node.folder / "rank0.jsonl").write_text('{"event": "end", "step": 4}\n')
    (event,) = node.tick()
    assert event["said"] == [{"rank": 0, "record": '{"event": "end", "step": 4}'}]


def test_what_nobody_reads_is_kept_in_its_file(node):
    node.take(f"watch {node.folder}")
    (node.folder / "rank0.log").write_text("a word\n")
    node.full = True
    assert node.tick() == []
    node.full = False
    assert [event["said"][0]["text"] for event in node.tick()] == ["a word"]


def test_an_orphan_and_a_stopped_process_are_told(node):
    node.events = [{"event": "orphan", "pid": 7, "command": "x", "job": "demo"},
                   {"event": "stopped", "pid": 8, "command": "y", "job": ""}]  # fmt: skip
    assert node.tick() == node.events


def test_questions_are_answered_by_their_number_and_for_one_job_or_all(node):
    assert node.take("list 4") == [{"answer": "4", "found": [{"pid": 9, "job": ""}]}]
    assert node.take("list 5 demo") == [{"answer": "5", "found": [{"pid": 9, "job": "demo"}]}]
    assert node.take("beat") == []


def test_only_ranks_that_live_and_catch_sigterm_get_it(node, monkeypatch):
    node.take(f"watch {node.folder}")
    for number in range(3):
        node.rank(number, 100 + number)
    node.tick()
    node.running.discard(102)
    node.tick()
    killed = []
    monkeypatch.setattr(watched.os, "kill", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr(agent.strays, "catches", lambda pid, number: number == 15 and pid != 101)
    assert node.take("term 4 demo") == [{"answer": "4", "found": [{"pid": 100, "rank": 0}]}]
    assert killed == [(100, 15)]
    assert node.take("term 5 other") == [{"answer": "5", "found": []}]


def test_a_node_that_kills_is_heard_within_its_lease(node, monkeypatch):
    tried = []
    monkeypatch.setattr(agent.strays, "kill", lambda seconds, job: tried.append(seconds) or [])
    node.agent._seconds = 2.0
    assert node.take("kill 6 demo") == [{"answer": "6", "found": []}]
    assert tried == [1.0]


def test_a_question_where_ranks_are_is_answered_whatever_they_say(node, monkeypatch):
    def odd(living, folder):
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")

    monkeypatch.setattr(agent.stacks, "collect", odd)
    node.take(f"watch {node.folder}")
    node.agent._examine("7", "demo")
    assert node.agent._examined == [{"answer": "7", "found": []}]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """An agent at the end of a real line; what it was told, then whether it ended its node."""

    def keep(data, seconds):
        source, theirs = os.pipe()
        mine, target = os.pipe()
        ended = []
        monkeypatch.setattr(agent, "JOINED", tmp_path / "joined")
        monkeypatch.setattr(agent.line, "end_node", lambda: ended.append(True))
        monkeypatch.setattr(agent.strays, "strays", lambda job="": [])
        one = agent.Agent(seconds)
        one._line = agent.line.Line("node1", source, target)
        os.write(theirs, data)
        if data.endswith(b"rest\n"):
            os.close(theirs)
        one.keep()
        assert (tmp_path / "joined").exists()
        assert os.read(mine, 100).startswith(b"beat\n")
        return bool(ended)

    return keep


def test_a_node_that_hears_nothing_ends_itself(kept):
    assert kept(b"beat\n", 0.3)


def test_a_node_that_is_about_to_be_removed_only_stops(kept):
    assert not kept(b"beat\nrest\n", 60.0)


def test_a_line_that_is_lost_ends_the_watch(node, monkeypatch):
    monkeypatch.setattr(node, "lost", lambda seconds: f"silent for {seconds:g} s")
    assert not node.agent._tick()
