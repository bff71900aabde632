"""Comparison with committed texts; a missing one is a failure, and only --accept writes one."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TYPE_THIS = "if that is meant, type: pytest tests/golden --accept, and read the difference"


class Golden:
    """Compares texts with files of a folder."""

    def __init__(self, folder: Path, *, accept: bool) -> None:
        self._folder, self._accept = folder, accept

    def check(self, name: str, text: str) -> None:
        path = self._folder / name
        if self._accept:
            path.write_text(text, encoding="utf-8")
            return
        if not path.is_file():
            pytest.fail(f"tests/golden/{name} is missing; {TYPE_THIS}", pytrace=False)
        assert text == path.read_text(encoding="utf-8"), f"tests/golden/{name} differs; {TYPE_THIS}"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(HERE, accept=request.config.getoption("--accept"))
