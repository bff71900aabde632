"""Wrong input, typed whole: exit code 2, said once, with what to type, and no traceback."""

import json

import pytest

from tests.unit.lines import type_line

# A line; what is said of it; the probable reason; what to type.
WRONG = [
    # The line itself.
    ("bulid", "there is no command 'bulid'", "did you mean 'build'?", "invoke --list"),
    ("--help bulid", "there is no command 'bulid'", "did you mean 'build'?", "invoke --list"),
    ("build fairseq megatron", "build takes STACK: 'megatron' is one word too many", "",
     "invoke build -h"),
    ("build fairseq bulid", "'bulid' is one word too many", "as a command: did you mean 'build'?",
     "invoke build -h"),
    ("run toy /data/train.py", "run takes STACK: '/data/train.py' is one word too many", "",
     "the program and its words follow --: invoke run toy -- /data/train.py"),
    ("build toy smoke toy", "say how many GPUs the smoke is to use", "--gpus is missing",
     "smoke --gpus 0 (CPU ranks), or --gpus 2"),
    ("run toy --updates 5", "run has no option --updates", "",
     "follow --: invoke run STACK -- PROGRAM --updates"),
    ("list toy", "list takes no words: 'toy' is one word too many", "", "invoke list -h"),
    ("show", "show needs STACK", "STACK: a stack's name", "invoke show STACK"),
    ("compare a.json", "compare needs AFTER", "AFTER: a later one", "invoke compare BEFORE AFTER"),
    ("export", "export needs CLUSTER and STACK", "CLUSTER: slurm or kubernetes",
     "invoke export CLUSTER STACK"),
    ("smoke --gpu 2", "smoke has no option --gpu", "did you mean '--gpus'?", "invoke smoke -h"),
    ("build -b cpu", "build has no option -b", "options are written out: --base",
     "invoke build -h"),
    ("--gpus 0 smoke", "there is no option --gpus before a command",
     "options stand behind their command: bench", "invoke bench --gpus"),
    # invoke's own options do nothing behind a command: `prune --dry` would prune.
    ("prune --hosts a --dry", "prune has no option --dry", "did you mean '--dry-run'?",
     "invoke prune -h"),
    ("smoke --gpus 0 --version", "smoke has no option --version", "", "invoke smoke -h"),
    ("--bogus", "there is no option --bogus before a command", "", "invoke -h"),
    ("smoke --gpus", "--gpus needs a value", "GPUs of the whole run", "invoke smoke -h"),
    ("build toy --source", "--source needs a value", "your own code", "invoke build -h"),
    ("build --base --force", "--base needs a value", "the image's base", "invoke build -h"),
    ("smoke --gpus -h", "--gpus needs a value", "GPUs of the whole run", "invoke smoke -h"),
    ("show toy --base --bogus", "--base needs a value", "the image's base", "invoke show -h"),
    ("smoke --gpus two", "--gpus takes a whole number, not 'two'", "GPUs of the whole run",
     "invoke smoke -h"),
    ("up toy --lease soon", "--lease takes a number, not 'soon'", "seconds", "invoke up -h"),
    ("show toy --base a --base b", "--base is given twice", "first as 'a'", "name it once"),
    ("show toy --stack fairseq", "--stack is given twice", "first as 'toy'", "name it once"),
    ("build fairseq -- x y", "build takes no words behind --: x y", "", "invoke build -h"),
    ("run toy -- t.py caf\udce9", "is not UTF-8", "", "give the file another name"),
    # Values that do not fit.
    ("smoke --gpus -3", "--gpus takes a whole number, 0 or more, not -3", "0 trains on CPU ranks",
     "invoke smoke -h"),
    ("smoke", "say how many GPUs the smoke is to use", "--gpus is missing",
     "invoke smoke --gpus 0"),
    ("smoke fairseq --gpus 3", "a smoke runs on 2, 4 or 8 GPUs, not on 3", "compares 1 rank with",
     "invoke smoke fairseq --gpus 2"),
    ("smoke --gpus 0 --nodes 3", "a CPU smoke runs on 2 nodes, not on 3", "",
     "invoke smoke --gpus 0"),
    ("smoke fairseq --gpus 0 --hosts a,b --nodes 2", "--nodes cannot be given with --hosts",
     "that its entry in the inventory names", "invoke smoke fairseq --hosts a,b"),
    ("smoke fairseq --gpus 0 --hosts a", "needs two nodes, and --hosts has 1", "",
     "name another host"),
    ("smoke fairseq --gpus 0 --hosts a,b", "has no folder /shared that the hosts share",
     "ranks of a smoke read data", "shared: true"),
    ("bench fairseq --gpus 0 --hosts a,b", "has no folder /shared that the hosts share",
     "ranks of a smoke read data", "shared: true"),
    ("bench fairseq --gpus 0 --nodes 2 --out x", "--out and --nodes: only for a bench on Slurm", "",
     "invoke bench fairseq --on slurm"),
    ("bench fairseq --gpus 0 --on kubernetes", "a bench runs on Slurm, not on kubernetes", "",
     "invoke bench fairseq --on slurm, or --hosts"),
    ("bench fairseq --gpus 0 --on slurm --hosts a,b", "--hosts cannot be given with --on slurm",
     "Slurm gives the nodes", "invoke bench fairseq --on slurm"),
    ("bench fairseq --gpus 0 --on slurm --nodes 1", "a bench on Slurm needs two nodes",
     "measured at once, in one container", "invoke bench fairseq --on slurm --nodes 2"),
    ("bench fairseq --gpus 3 --on slurm", "2 nodes cannot have equally many", "",
     "invoke bench fairseq --on slurm --nodes 2 --gpus 2"),
    ("bench fairseq --gpus 4 --on slurm --counts 3", "3 ranks cannot be spread over 2 nodes", "",
     "--counts with numbers that fill whole nodes"),
    ("bench fairseq --gpus 0 --on slurm --site nowhere.yml", "nowhere.yml cannot be read",
     "No such file", "--site (docs/howto/slurm.md)"),
    ("build smoke --gpus -1", "--gpus takes a whole number, 0 or more, not -1", "",
     "invoke smoke -h"),
    ("bench --gpus 0 --rounds 0", "--rounds takes a whole number, 1 or more, not 0",
     "how often every variant", "invoke bench -h"),
    ("bench fairseq --gpus 0 --set batch=4", "--set is about a template", "", "--example NAME"),
    ("bench fairseq --gpus 0 --example gpt2-fsdp --on slurm", "--on cannot be given with --example",
     "on this machine", "leave --on out"),
    ("bench --gpus 0 --example lm-fsdp", "--example is of one stack", "",
     "invoke bench STACK --example lm-fsdp"),
    ("bench fairseq --gpus 0 --example lm-fsdp --sides layer",
     "--sides cannot be given with --example", "trained once, on all ranks", "leave --sides out"),
    ("bench megatron --gpus 0 --example gpt2-345", "there is no example 'gpt2-345' of megatron",
     "did you mean 'gpt2-345m'?", "invoke run megatron --examples"),
    ("bench megatron --gpus 0 --example gpt2-345m --updates 30", "--updates must be 16 or more",
     "saved at the half", "--updates 32"),
    ("bench megatron --gpus 0 --example gpt-tp", "gpt-tp is a small example, no template", "",
     "invoke run megatron --examples"),
    ("bench megatron --gpus 0 --example gpt2-345m-3d --set ssh=no",
     "--set ssh is an option of the launcher", "as the template has it", "values of gpt2-345m-3d"),
    ("bench megatron --gpus 0 --example gpt2-345m-3d",
     "gpt2-345m-3d needs a multiple of 4 ranks, not 2", "tp x pp", "--set tp=N,pp=N"),
    ("bench", "say how many GPUs the bench is to use", "--gpus is missing",
     "invoke bench --gpus 0"),
    ("run x --hosts a --restarts -1 -- x", "--restarts takes a whole number, 0 or more, not -1",
     "start again this often", "invoke run -h"),
    ("up x --lease 1.5", "--lease takes a number, 2 or more, not 1.5", "without being heard of",
     "invoke up -h"),
    ("up fairseq --hosts a --gpus 2 --base cpu", "base 'cpu' is for cpu ranks", "",
     "invoke up fairseq --gpus 2 --base cuda"),
    ("up fairseq --hosts a --gpus 0 --days 91", "--days must be more than 0 and at most 90", "",
     "invoke up fairseq --days 7"),
    ("run fairseq --example a --write w --on slurm", "for hosts: --on", "",
     "invoke run fairseq --example NAME --hosts hosts.yml --write FOLDER"),
    ("run fairseq --nodes 2 -- x", "no cluster is named", "", "add --on slurm"),
    ("export slrm fairseq --nodes 2 -- x", "'slrm' is not a supported cluster",
     "did you mean 'slurm'?", "invoke export slurm"),
    ("show nothing", "there is no stack 'nothing'", "known: accelerate", "invoke list"),
    ("show fairseq --base cup", "there is no base 'cup'", "did you mean 'cpu'?", "invoke list"),
    ("smoke nothing --gpus 0", "there is no stack 'nothing'", "known: accelerate", "invoke list"),
    ("build nothing", "there is no stack 'nothing'", "known: accelerate", "invoke list"),
    ("lock nothing", "there is no stack 'nothing'", "known: accelerate", "invoke list"),
    ("smoke --gpus 0 --junit no/such.xml", "--junit: no/such.xml cannot be written",
     "there is no folder no", "--junit results.xml"),
    ("prove --page --junit a.xml", "--junit is for proofs", "", "leave one of them out"),
    ("prove --check", "--check compares a page", "", "invoke prove --page --check"),
    ("base nothing", "there is no base 'nothing'", "known: ", "invoke list"),
    ("data nothing --input a --out b", "there is no form of data for a stack 'nothing'",
     "known: accelerate", "one of"),
    ("data fairseq", "--input is missing", "", "invoke data fairseq --input"),
    ("diagnose no/such/log", "no/such/log cannot be read", "No such file", "invoke diagnose"),
    ("compare no/a.json no/b.json", "no/a.json cannot be read", "No such file", "smoke.json"),
    ("evidence no/such", "no/such cannot be read", "No such file", "invoke smoke"),
    ("pull fairseq --via hots", "--via is hosts or registry, not 'hots'", "did you mean 'hosts'?",
     "invoke pull fairseq --via hosts"),
    ("prune --keep 0 --hosts a", "--keep takes a whole number, 1 or more, not 0",
     "how many releases", "invoke prune -h"),
    ("build --tag t", "--tag belongs to a build of your own source", "", "--source"),
    ("sync a", "say what to copy and where", "", "invoke sync code --to /code"),
    ("up fairseq --hosts gpu[01- --gpus 0", "'gpu[01-' is neither a file nor a node set",
     "missing bracket", "--hosts 'gpu[01-04],train'"),
    ("run fairseq --hosts no.yml -- x", "there is no no.yml", "which machines", "--hosts"),
]  # fmt: skip


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """Type in an empty folder, where no file answers in place of a refusal."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("line", "what", "why", "hint"), WRONG, ids=[row[0] for row in WRONG])
def test_wrong_input_exits_2_and_says_what_to_type(monkeypatch, capsys, line, what, why, hint):
    assert type_line(monkeypatch, line) == 2
    out, said = capsys.readouterr()
    first, *others = said.splitlines()
    assert first.startswith("error: ") and what in first
    assert why in " ".join(others[:-1])
    assert others[-1].startswith("To go on: ") and hint in others[-1]
    assert said.count("error:") == 1 and "Traceback" not in said and out == ""


@pytest.mark.parametrize("line", ["bulid --json", "smoke --gpus two --json", "show none --json"])
def test_wrong_input_is_json_where_json_was_asked_for(monkeypatch, capsys, line):
    assert type_line(monkeypatch, line) == 2
    value = json.loads(capsys.readouterr().out)
    assert sorted(value) == ["diagnoses", "error"] and value["error"]["hint"]


def test_json_behind_two_dashes_is_not_asked_of_us(monkeypatch, capsys):
    assert type_line(monkeypatch, "runn x -- --json") == 2
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("alone")
def test_a_file_of_hosts_that_is_not_there_is_answered_with_one_near(monkeypatch, capsys, tmp_path):
    (tmp_path / "cluster.yml").touch()
    assert type_line(monkeypatch, "status --hosts clutser.yml") == 2
    assert "To go on: did you mean 'cluster.yml'? Or write" in capsys.readouterr().err
