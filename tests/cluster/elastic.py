"""Helpers for tests of jobs whose members change."""

WINDOW = ["--agent-window", "500ms", "--agent-dead", "1500ms"]


def agreed(results):
    """Check that all workers received the same sums in every round.

    Returns for each round the masks of the ranks whose contributions are in the sums.
    """
    for r in results[1:]:
        assert r["rounds"] == results[0]["rounds"]
    return [masks for _, masks in results[0]["rounds"]]


def lost(result):
    return {w["rank"]: w["why"] for w in result["people"] if w["is_lost"]}
