"""A node's agent without a node: the words of its ranks, and what it learns of them."""

import json

import pytest

from tests.unit.beside import agent


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
    words = agent.Words(path)

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
        assert all(len(piece.encode()) <= agent.LINE_BYTES for piece in said)


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
    monkeypatch.setattr(agent, "LAST_BYTES", 12)
    rank(b"a\n", limit=0)
    rank(b"x" * 100 + b"\nTraceback\n", limit=0)
    first, *rest = rank.finish()
    assert first.startswith("[101 bytes are only in ") and first.endswith("rank3.log]")
    assert rest == ["x", "Traceback"]


def test_a_file_that_is_gone_says_nothing(tmp_path):
    words = agent.Words(tmp_path / "rank0.log")
    assert words.read(100) == [] == words.finish()


# The agent


@pytest.fixture
def node(tmp_path, monkeypatch, clock):
    """An agent whose line is recorded, its job's folder, and which processes run."""

    class Node:
        def __init__(self):
            self.folder = tmp_path / "ranks"
            self.folder.mkdir()
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
            assert self.agent._tick()
            return self.told()

        def take(self, text):
            self.agent._take(None, text)
            return self.told()

        def rank(self, number, pid):
            value = {"rank": number, "pid": pid, "world_size": "2"}
            (self.folder / f"rank{number}.json").write_text(json.dumps(value))
            self.running.add(pid)

    made = Node()
    monkeypatch.setattr(made.agent, "_line", made)
    monkeypatch.setattr(made.agent._keeper, "look", lambda: list(made.events))
    monkeypatch.setattr(made.agent._keeper, "answer", lambda text: (
        [{"pid": 9}] if text.startswith(("list", "kill")) else None
    ))  # fmt: skip
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
        {"said": [{"rank": 0, "text": "zero"}]}, {"said": [{"rank": 1, "text": "one"}]},
    ]  # fmt: skip
    assert node.take("finish demo") == [
        {"said": [{"rank": 0, "text": "half"}]}, {"finished": "demo"},
    ]  # fmt: skip


def test_a_rank_that_writes_much_does_not_silence_another(node, monkeypatch):
    monkeypatch.setattr(agent, "CHUNK_BYTES", 40)
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
        {"event": "rank", "pid": 50, "rank": 0}, {"event": "rank", "pid": 51, "rank": 1},
    ]  # fmt: skip
    assert node.tick() == []
    (node.folder / "rank0.end").write_text("ok")
    node.running.clear()
    assert node.tick() == [
        {"event": "gone", "pid": 50, "rank": 0, "end": "ok"},
        {"event": "gone", "pid": 51, "rank": 1, "end": ""},
    ]
    assert node.tick() == []


def test_a_rank_that_ends_between_two_looks_is_told_all_the_same(node):
    node.take(f"watch {node.folder}")
    node.rank(0, 50)
    node.running.clear()
    (node.folder / "rank0.end").write_text("RuntimeError: no")
    assert node.tick() == [
        {"event": "rank", "pid": 50, "rank": 0},
        {"event": "gone", "pid": 50, "rank": 0, "end": "RuntimeError: no"},
    ]


def test_how_a_rank_ended_is_told_before_its_job_is_finished(node):
    node.take(f"watch {node.folder}")
    node.rank(0, 50)
    node.tick()
    node.running.clear()
    assert node.take("finish demo") == [
        {"event": "gone", "pid": 50, "rank": 0, "end": ""}, {"finished": "demo"},
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
    assert node.tick() == [{"event": "rank", "pid": 50, "rank": 0}]
    for state in ("ran", "fell back"):
        parts = {"layer": {"state": state, "why": ""}}
        fused.write_text(json.dumps(parts))
        assert node.tick() == [{"event": "fused", "rank": 0, "parts": parts}]
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


def test_another_job_begins_anew(node, tmp_path):
    node.take(f"watch {node.folder}")
    node.rank(0, 50)
    node.tick()
    node.take(f"watch {tmp_path}/other")
    node.running.clear()
    assert node.tick() == []


def test_an_orphan_is_told_and_what_is_known_of_a_rank_by_its_parent_only_is_not(node):
    node.events = [{"event": "orphan", "pid": 7, "command": "x"}, {"event": "gone", "pid": 8}]
    assert node.tick() == [{"event": "orphan", "pid": 7, "command": "x"}]


def test_questions_are_answered_by_their_number(node):
    assert node.take("list 4") == [{"answer": "4", "found": [{"pid": 9}]}]
    assert node.take("beat") == []


def test_a_node_that_hears_nothing_ends_itself(node, tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(agent, "JOINED", tmp_path / "joined")
    monkeypatch.setattr(agent.lease, "end_node", lambda: ended.append(True))
    monkeypatch.setattr(agent.lease, "run", lambda lines, tick, take: None)
    node.agent.keep()
    assert ended == [True] and (tmp_path / "joined").exists()


def test_a_line_that_is_lost_ends_the_watch(node, monkeypatch):
    monkeypatch.setattr(node, "lost", lambda seconds: f"silent for {seconds:g} s")
    assert not node.agent._tick()
