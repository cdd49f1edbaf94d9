"""Helpers for tests of jobs whose members change."""

WINDOW = ["--agent-window", "500ms", "--agent-dead", "1500ms"]


def agreed(results):
    """Check that all workers received the same sums in every round.

    Each sum has a mask of the workers in it: bit i is set if the sum has the contribution of
    rank i. Return, for each round, the sorted list of the different masks of the round's sums.
    """
    for r in results[1:]:
        assert r["rounds"] == results[0]["rounds"]
    return [masks for _, masks in results[0]["rounds"]]


def lost(result):
    return {w["rank"]: w["why"] for w in result["people"] if w["is_lost"]}
