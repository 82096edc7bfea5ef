"""The quiz directive refuses what would puzzle a reader."""

import pytest
from quiz import parse_quiz


def test_a_quiz():
    question, options = parse_quiz(
        "Who sends?",
        ["Think of $N$.", "", "- [x] Rank 0 :: It is the", "  root.", "- [ ] Nobody :: No."],
    )
    assert question == "Who sends? Think of $N$."
    assert options == [(True, "Rank 0", "It is the root."), (False, "Nobody", "No.")]


@pytest.mark.parametrize(
    ("question", "lines", "fault"),
    [
        ("Q", ["- [x] a :: b", "- [ ] c"], "no explanation"),
        ("Q", ["- [x] a :: b", "- [ ] c :: "], "no explanation"),
        ("Q", ["- [x] a :: b", "- [ ] $N - 1$ :: d"], "only a formula"),
        ("Q", ["- [ ] a :: b", "- [ ] c :: d"], "one marked"),
        ("Q", ["- [x] a :: b"], "at least two"),
        ("", ["- [x] a :: b", "- [ ] c :: d"], "question"),
    ],
)
def test_a_faulty_quiz(question, lines, fault):
    with pytest.raises(ValueError, match=fault):
        parse_quiz(question, lines)
