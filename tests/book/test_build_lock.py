"""Two builds in one folder, for example `make book` while `make test` runs."""

from __future__ import annotations

import sys
import threading

import build_book
import pytest


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_a_second_build_waits_for_the_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build_book, "BUILD", tmp_path)
    order = []

    def second():
        with build_book.alone():
            order.append("second")

    thread = threading.Thread(target=second)
    with build_book.alone():
        thread.start()
        thread.join(0.5)  # it would be through by now
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]
    assert "waiting for it" in capsys.readouterr().out
