"""Host commands: echoed in errors, bounded in time, fed and followed line by line."""

import sys
import time

import pytest

from stackyard.system.errors import CommandError, StackyardError
from stackyard.system.process import last_lines, run, start_daemon


@pytest.mark.parametrize(
    ("text", "count", "found"),
    [("", 3, ""), ("a\n\n b\n\n", 3, "a\n b"), ("a\nb\nc\n", 2, "b\nc")],
)
def test_the_last_lines_are_those_that_say_something(text, count, found):
    assert last_lines(text, count) == found


@pytest.mark.usefixtures("allow_processes")
class TestRun:
    def python(self, code, **named):
        return run([sys.executable, "-c", code], **named)

    def test_both_streams_are_kept_in_order_and_told_as_they_come(self):
        told = []
        code = "import sys; print('a', flush=True); print('b', file=sys.stderr, flush=True)"
        done = self.python(code, on_line=told.append)
        assert (done.code, done.output, told) == (0, "a\nb", ["a", "b"])

    def test_standard_input_is_fed_and_otherwise_empty(self):
        read = "import sys; print(len(sys.stdin.read()))"
        assert self.python(read, stdin=b"x" * 200_000).output == "200000"
        assert self.python(read).output == "0"

    def test_a_program_that_does_not_read_its_input_is_no_error(self):
        assert self.python("print(1)", stdin=b"x" * 1_000_000).output == "1"

    def test_variables_are_added_to_the_environment(self):
        code = "import os; print(os.environ['STACKYARD_TEST'], 'PATH' in os.environ)"
        assert self.python(code, env={"STACKYARD_TEST": "yes"}).output == "yes True"

    def test_a_failure_shows_the_command_its_code_and_its_last_lines(self):
        with pytest.raises(CommandError) as caught:
            self.python("print('why'); raise SystemExit(3)")
        assert (caught.value.code, caught.value.why) == (3, "why")
        assert caught.value.what.startswith(f"command failed with exit code 3: {sys.executable} -c")

    def test_a_failure_that_is_looked_at_is_no_error(self):
        assert self.python("raise SystemExit(3)", check=False).code == 3

    def test_a_program_that_is_not_there_is_named(self):
        with pytest.raises(StackyardError, match="cannot start /no/such: No such file"):
            run(["/no/such"])

    def test_past_its_limit_a_command_ends_with_all_its_children(self):
        code = (
            "import subprocess, sys; print('begun', flush=True);"
            "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
        )
        started = time.monotonic()
        with pytest.raises(CommandError) as caught:
            self.python(code, timeout=0.5)
        assert time.monotonic() - started < 10
        assert (caught.value.code, caught.value.why) == (124, "begun")
        assert caught.value.what.endswith("ran past its limit of 0 s")

    def test_an_interruption_ends_the_command(self):
        def interrupt(line):
            raise KeyboardInterrupt

        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            self.python("import time; print(1, flush=True); time.sleep(60)", on_line=interrupt)
        assert time.monotonic() - started < 10

    def test_bytes_that_are_no_text_are_shown_all_the_same(self):
        code = r"import os; os.write(1, b'\xff\n')"
        assert self.python(code).output == "\ufffd"

    @pytest.mark.filterwarnings("ignore::ResourceWarning")
    def test_a_daemon_writes_to_its_log(self, tmp_path):
        log = tmp_path / "log"
        start_daemon([sys.executable, "-c", "print('begun')"], log=log)
        end = time.monotonic() + 10
        while log.read_text() != "begun\n" and time.monotonic() < end:
            time.sleep(0.01)
        assert log.read_text() == "begun\n"
