"""What is asked of `invoke data`, as a value: what the arguments mean, and what is refused."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from stackyard.cli.steps import data
from stackyard.data import container, dataset, encoding
from stackyard.system.errors import StackyardError, UsageError

WORDS = dataset.Vocabulary(kind="words", name="v.json", files={"vocab.json": "/home/v.json"})


def request(**changed):
    given = {
        "stack": "megatron",
        "inputs": {"train": ["a.txt"]},
        "vocabulary": WORDS,
        "places": {"a.txt": "/data/input/0"},
    }
    return dataset.Request(**{**given, **changed})


# arguments


def test_a_split_is_weights_of_three():
    assert dataset.parse_split("900,50,50") == (900, 50, 50)
    assert dataset.parse_split("98,2") == (98, 2, 0)
    assert dataset.parse_split("") == ()


@pytest.mark.parametrize("text", ["0,1,1", "1,-1", "1,2,3,4", "a,b", "nan,1", "inf,1", ","])
def test_a_split_without_a_train_part_or_no_split_at_all_is_refused(text):
    with pytest.raises(UsageError, match="--split"):
        dataset.parse_split(text)


def test_encodings_are_named_as_python_names_them():
    assert dataset.parse_encoding("UTF8") == "utf-8"
    assert dataset.parse_encoding("utf-8-sig") == "utf-8"
    assert dataset.parse_encoding("gb18030") == "gb18030"


@pytest.mark.parametrize(
    "text", ["utf-16", "utf-32-le", "utf-7", "iso2022_jp", "hz", "klingon", "rot13", "undefined"]
)
def test_an_encoding_whose_lines_cannot_be_cut_is_refused(text):
    with pytest.raises(UsageError, match="--encoding"):
        dataset.parse_encoding(text)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"bad_lines": "drop"}, "--bad-lines"),
        ({"split": (9, 1, 0), "inputs": {"train": ["a"], "valid": ["b"]}}, "together with"),
        ({"seq_length": -1}, "--seq-length"),
        ({"stack": "fairseq", "eod": "<end>"}, "own </s>"),
        ({"eod": "<end>", "append_eod": False}, "contradict"),
        ({"shards": 2}, "fairseq's way"),
    ],
)
def test_what_does_not_fit_together_is_refused(changed, said):
    with pytest.raises(UsageError, match=said):
        dataset.require(request(**changed))


def test_what_fits_is_not():
    dataset.require(request(split=(9, 1, 0), seq_length=32, eod="<end>"))


# settings


def test_samples_of_accelerate_have_a_length_of_their_own():
    assert dataset.settings(request(stack="accelerate"), 1)["seq_length"] == dataset.SAMPLE
    assert dataset.settings(request(stack="accelerate", seq_length=64), 1)["seq_length"] == 64
    assert dataset.settings(request(), 1)["seq_length"] == 0


def test_what_is_kept_beside_the_data_names_no_place_of_this_machine():
    told = json.dumps(dataset.settings(request(), 7)["told"])
    assert "/home" not in told
    assert "workers" not in told


def test_unfinished_work_is_known_by_all_that_decides_it_and_nothing_else():
    def identity(workers=1, image="i", vocabulary=b"{}", **changed):
        given = dataset.settings(request(**changed), workers)
        return dataset.identity(given, image, {"vocab.json": vocabulary}, {})

    first = identity()
    assert identity(workers=9) == identity(split=(9, 1, 0)) == identity(seq_length=9) == first
    others = [
        identity(image="j"),
        identity(vocabulary=b"{ }"),
        identity(append_eod=False),
        identity(keep_blank=True),
        identity(encoding="gb18030"),
    ]
    assert len({first, *others}) == 6


def test_chunks_follow_from_the_input_alone():
    assert dataset.chunk_size(1000) == dataset.LEAST
    assert dataset.chunk_size(10**9) == 10**9 // dataset.CHUNKS
    assert dataset.chunk_size(10**13) == dataset.MOST


# progress


def test_lines_of_others_are_no_events():
    assert dataset.read_event('{"event": "done", "x": 1}') == {"event": "done", "x": 1}
    assert dataset.read_event("Warning: something") == {}
    assert dataset.read_event('{"event": "do') == {}


def test_the_rate_is_of_what_is_new_and_so_is_the_time_left():
    event = {"done": 600, "total": 1000, "kept": 200, "tokens": 12345}
    assert dataset.progress_text(event, 4.0) == "60 % of 1.0 kB, 100 B/s, 4 s left, 12,345 tokens"


def test_nothing_new_yet_has_no_rate():
    event = {"done": 5, "total": 10, "kept": 5, "tokens": 1}
    assert dataset.progress_text(event, 1.0) == "50 % of 10 B, 1 tokens"


def test_sizes_and_durations_are_for_people():
    assert [dataset.size(n) for n in (999, 1e6, 2.5e12, 5e15)] == [
        "999 B",
        "1.0 MB",
        "2.5 TB",
        "5000.0 TB",
    ]
    event = {"done": 1, "total": 36_000, "kept": 0, "tokens": 0}
    assert "10.0 h left" in dataset.progress_text(event, 1.0)


# files


def test_a_pattern_stands_for_its_files_in_order(tmp_path):
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text("x")
    found = encoding.find_inputs([f"{tmp_path}/*.txt", f"{tmp_path}/c.md"], "--input")
    assert found == [f"{tmp_path}/{name}" for name in ("a.txt", "b.txt", "c.md")]


def test_a_pattern_means_what_it_means_in_a_shell(tmp_path):
    for name in ("b/t.txt", "a/t.txt", "a/.hidden.txt", ".out.0123.partial/t.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    both = [f"{tmp_path}/a/t.txt", f"{tmp_path}/b/t.txt"]
    assert encoding.find_inputs([f"{tmp_path}/*/*.txt"], "--input") == both
    # Unfinished work lies hidden beside the target, and that may be beside the text.
    assert encoding.find_inputs([f"{tmp_path}/a/*"], "--input") == both[:1]


@pytest.mark.parametrize(
    ("name", "said"),
    [("none", "does not exist"), ("folder", "is a folder"), ("empty", "is empty"),
     ("a:b", "colon"), ("*.csv", "no file matches")],
)  # fmt: skip
def test_an_input_that_cannot_be_read_is_refused_before_anything_starts(tmp_path, name, said):
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "a:b").write_text("x")
    with pytest.raises(UsageError, match=said):
        encoding.find_inputs([str(tmp_path / name)], "--valid")


def test_a_file_that_is_named_twice_is_in_the_container_once(tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "same").symlink_to("a")
    (tmp_path / "b").write_text("x")
    names = [str(tmp_path / name) for name in ("a", "b", "same")]
    places = data._places({"train": names[:2], "valid": names[2:] + names[:1]})
    assert places[names[0]] == places[names[2]] != places[names[1]]


def test_a_tokenizer_is_a_folder_with_one_or_its_file(tmp_path):
    (tmp_path / "blob").write_text("{}")
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "tokenizer.json").symlink_to("../blob")  # as the hub's cache has them
    (folder / "model.safetensors").write_text("weights")
    found = encoding.find_vocabulary(str(folder), "", "", "megatron")
    assert found.files == {"tokenizer.json": str(tmp_path / "blob")}
    one = encoding.find_vocabulary(str(tmp_path / "blob"), "", "", "megatron")
    assert (one.kind, one.files) == ("tokenizer", {"tokenizer.json": str(tmp_path / "blob")})


def test_a_vocabulary_with_merges_is_a_tokenizer(tmp_path):
    (tmp_path / "v.json").write_text("{}")
    (tmp_path / "m.txt").write_text("")
    words = encoding.find_vocabulary("", str(tmp_path / "v.json"), "", "megatron")
    both = encoding.find_vocabulary(
        "", str(tmp_path / "v.json"), str(tmp_path / "m.txt"), "megatron"
    )
    assert (words.kind, both.kind) == ("words", "tokenizer")
    assert set(both.files) == {"vocab.json", "merges.txt"}


def test_what_is_no_tokenizer_is_refused_and_a_name_on_the_hub_says_how_to_get_it(tmp_path):
    (tmp_path / "t").mkdir()
    for given, said in (
        (("", "", ""), "--tokenizer or --vocab is missing"),
        (("t", "v", ""), "not both"),
        ((str(tmp_path / "t"), "", ""), "holds no tokenizer"),
        (("", str(tmp_path / "v.json"), ""), "no such file"),
    ):
        with pytest.raises(UsageError, match=said):
            encoding.find_vocabulary(*given, "megatron")
    with pytest.raises(UsageError) as refused:
        encoding.find_vocabulary("google/mt5-small", "", "", "megatron")
    assert "hf download google/mt5-small" in refused.value.hint


def test_a_vocabulary_to_train_has_a_size_and_goes_with_no_other(tmp_path):
    found = encoding.find_vocabulary("", "", "", "accelerate", 250_000)
    assert (found.kind, found.size, found.files) == ("train", 250_000, {})
    with pytest.raises(UsageError, match="goes with no other"):
        encoding.find_vocabulary(str(tmp_path), "", "", "accelerate", 250_000)


def test_what_is_there_is_never_written_over(tmp_path):
    encoding.require_free(tmp_path / "new")
    encoding.require_free(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is there already"):
        encoding.require_free(tmp_path)


def test_a_target_that_cannot_be_put_there_whole_is_refused_at_once(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "nowhere").symlink_to("none")
    for name in ("link", "nowhere"):
        with pytest.raises(UsageError, match="is a link"):
            encoding.require_free(tmp_path / name)
    with pytest.raises(UsageError, match="is there already"):
        encoding.require_free(Path("/proc"))


def test_an_empty_file_system_cannot_be_the_target_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == str(tmp_path))
    with pytest.raises(UsageError, match="own file system"):
        encoding.require_free(tmp_path)


def test_work_of_other_programs_is_never_taken_for_this():
    before = container.program_texts()
    assert set(before) >= {"prepare.py", "encode.py", "shards.py"}
    given = dataset.settings(request(), 1)
    changed = {**before, "encode.py": before["encode.py"] + b"#"}
    found = {dataset.identity(given, "i", {}, texts) for texts in (before, changed)}
    assert len(found) == 2


def test_a_place_that_cannot_be_written_to_is_said_and_no_traceback(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "v.json").write_text("{}")
    words = encoding.find_vocabulary("", str(tmp_path / "v.json"), "", "megatron")
    asked = request(vocabulary=words, inputs={"train": [str(tmp_path / "v.json")]})
    asked = replace(asked, places={str(tmp_path / "v.json"): "/data/input/0"})
    with pytest.raises(StackyardError, match="cannot be written"):
        encoding.prepare(None, "i", asked, tmp_path / "file" / "out", 1, print, print)


def test_what_appears_at_the_target_meanwhile_is_kept_and_so_is_the_work(tmp_path, monkeypatch):
    (tmp_path / "v.json").write_text("{}")
    words = encoding.find_vocabulary("", str(tmp_path / "v.json"), "", "megatron")
    asked = request(vocabulary=words, inputs={"train": [str(tmp_path / "v.json")]})
    said = []

    def made(engine, image, request, given, work, say):
        for folder in ("shards", "ready"):
            (work / folder).mkdir()
        (work / "shards" / "0.json").write_text("{}")
        (tmp_path / "out").write_text("somebody's")

    asked = replace(asked, places={str(tmp_path / "v.json"): "/data/input/0"})
    monkeypatch.setattr(encoding, "_in_container", made)
    with pytest.raises(UsageError, match="is there already"):
        encoding.prepare(None, "i", asked, tmp_path / "out", 1, said.append, said.append)
    assert (tmp_path / "out").read_text() == "somebody's"
    assert "what is finished stays" in said[0]


def test_a_vocabulary_that_cannot_be_read_is_said(tmp_path, monkeypatch):
    (tmp_path / "v.json").write_text("{}")
    monkeypatch.setattr(os, "access", lambda path, how: False)  # root reads everything
    with pytest.raises(UsageError, match="cannot be read"):
        encoding.find_vocabulary("", str(tmp_path / "v.json"), "", "megatron")


def test_merges_without_their_vocabulary_are_not_passed_over(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="--merges"):
        encoding.find_vocabulary(str(tmp_path), "", "merges.txt", "megatron")


def test_work_whose_folder_went_away_meanwhile_is_nobodys(tmp_path, monkeypatch):
    taken = encoding.fcntl.flock

    def late(handle, how):
        (tmp_path / "work").rmdir()  # by the command that had it until now
        taken(handle, how)

    monkeypatch.setattr(encoding.fcntl, "flock", late)
    with (
        pytest.raises(UsageError, match="another command"),
        encoding._held(tmp_path / "work", tmp_path / "out"),
    ):
        pass


def test_unfinished_work_belongs_to_one_command(tmp_path):
    with (
        encoding._held(tmp_path / "work", tmp_path / "out"),
        pytest.raises(UsageError, match="another command"),
        encoding._held(tmp_path / "work", tmp_path / "out"),
    ):
        pass


def test_lines_of_json_are_known_by_their_files():
    assert data._usual_key({"train": ["a.jsonl", "b.jsonl.gz"], "valid": []}) == "text"
    assert data._usual_key({"train": ["a.jsonl.zst"]}) == "text"
    assert data._usual_key({"train": ["a.txt", "b.gz"]}) == ""


def test_files_of_two_kinds_are_not_read_alike():
    with pytest.raises(UsageError, match=r"a.jsonl is named as JSON lines, b.txt is not"):
        data._usual_key({"train": ["a.jsonl"], "valid": ["b.txt"]})
