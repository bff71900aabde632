"""Who waits in which collective and who never came, from the stacks of live ranks."""

import pytest

from tests.unit.beside import hang, stacks

TORCH = "/usr/local/lib/python3.11/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
WRAPPER = [f"{TORCH}/distributed/c10d_logger.py", 81, "wrapper"]
NODES = {0: "study", 1: "train", 2: "depot"}


def waits(name="all_reduce"):
    return {"stack": [[C10D, 2810, name], WRAPPER, ["/code/train.py", 7, "main"]]}


LOADS = {"stack": [["/usr/lib/python3.11/ssl.py", 9, "read"], ["/code/data.py", 33, "load"],
                   ["/code/train.py", 6, "main"]]}  # fmt: skip
BACKWARD = {"stack": [[f"{TORCH}/autograd/graph.py", 824, "_engine_run_backward"],
                      ["/code/t.py", 5, "f"]]}  # fmt: skip
STOPPED = {"stack": [], "stopped": True}


@pytest.mark.parametrize(
    ("answers", "what"),
    [
        ((waits(), LOADS, waits()),
         "rank 1 (train) (at load (data.py:33)) never came to all_reduce, where rank 0 (study),"
         " rank 2 (depot) wait"),
        ((waits(), waits(), waits()), "all ranks wait in all_reduce: what they send does not"
                                      " arrive"),
        ((waits(), waits("barrier"), waits()),
         "ranks wait in different collectives: rank 0 (study), rank 2 (depot) in all_reduce;"
         " rank 1 (train) in barrier"),
        ((waits(), STOPPED, waits()), "rank 1 (train) is stopped"),
        ((BACKWARD, BACKWARD, LOADS), "rank 2 (depot) (at load (data.py:33)) never came to"
                                      " backward, where rank 0 (study), rank 1 (train) wait"),
        ((LOADS, LOADS, LOADS),
         "no rank waits in a collective: rank 0 (study) is at load (data.py:33); rank 1 (train) is"
         " at load (data.py:33); rank 2 (depot) is at load (data.py:33)"),
        ((), "no rank answers; rank 0 (study), rank 1 (train), rank 2 (depot) did not answer"),
        ((waits(),), "rank 0 (study) waits in all_reduce, and nobody else is there;"
                     " rank 1 (train), rank 2 (depot) did not answer"),
    ],
)  # fmt: skip
def test_who_waits_and_who_never_came_is_named(answers, what):
    assert hang.explain(dict(enumerate(answers)), NODES)[0] == what


@pytest.mark.parametrize(
    ("answers", "late"),
    [
        ((waits(), LOADS, waits()), [1]),
        ((waits(), STOPPED, LOADS), [1]),  # the third waits for it, too, or comes later
        ((waits(), {"stack": []}), []),  # nobody knows where the second one is
        ((waits(), waits("barrier"), waits()), []),
        ((waits(), waits(), waits()), []),
        ((LOADS, LOADS, LOADS), []),
        ((), []),
    ],
)
def test_who_keeps_others_waiting_is_told(answers, late):
    assert hang.explain(dict(enumerate(answers)), NODES)[2] == late


def test_each_rank_is_said_by_itself():
    _, lines, _ = hang.explain({0: waits(), 1: LOADS, 2: {"stack": []}}, NODES)
    assert lines == [
        "rank 0 (study) waits in all_reduce, at main (train.py:7)",
        "rank 1 (train) waits in no collective, at load (data.py:33)",
        "rank 2 (depot) waits in no collective; its stack is not known",
    ]


def test_the_flight_recorder_tells_collectives_of_one_name_apart():
    def open_(number):
        entry = {"name": "nccl:all_reduce", "number": number, "state": "scheduled"}
        return {"stack": [["/code/train.py", 9, "main"]], "open": [entry]}

    what, lines, _ = hang.explain({0: open_(6), 1: open_(5)}, {0: "study", 1: "train"})
    assert what == ("ranks wait in different collectives: rank 0 (study) in all_reduce #6;"
                    " rank 1 (train) in all_reduce #5")  # fmt: skip
    assert lines[0] == "rank 0 (study) waits in all_reduce #6, at main (train.py:9)"


def test_what_ras_says_of_different_counts_is_quoted():
    ras = ("NCCL version 2.28.9\n  Communicator ranks have different AllReduce operation counts\n"
           "    Rank 0 has launched up to operation 6\n  nothing else\n")  # fmt: skip
    what, _, _ = hang.explain({0: {**waits(), "ras": ras}, 1: waits(), 2: waits()}, NODES)
    assert what.endswith("; Communicator ranks have different AllReduce operation counts;"
                         " Rank 0 has launched up to operation 6")  # fmt: skip


def test_of_many_ranks_a_few_are_named():
    nodes = dict.fromkeys(range(40), "h")
    answers = {rank: LOADS if rank == 7 else waits() for rank in nodes}
    what, lines, _ = hang.explain(answers, nodes)
    assert what.startswith("rank 7 (h) (at load") and what.endswith("rank 8 (h) and 31 more wait")
    assert len(lines) == 40


# What a rank writes on the signal

DUMP = """\
Thread 0x00007f5e (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f60 (most recent call first):
  File "/code/a b.py", line 3 in step
  File "/code/train.py", line 20 in <module>
"""


def test_the_main_threads_frames_are_read():
    assert stacks.stack(DUMP) == [["/code/a b.py", 3, "step"], ["/code/train.py", 20, "<module>"]]
    named = DUMP.replace("0x00007f60 (", "0x00007f60 [python3] (")
    assert stacks.stack(named) == stacks.stack(DUMP)
    assert stacks.stack("") == stacks.stack("garbage\n") == []
