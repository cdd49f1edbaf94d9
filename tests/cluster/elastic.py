"""Helpers of tests of jobs whose members change."""

WINDOW = ["--agent-window", "500ms", "--agent-dead", "1500ms"]


def agreed(results):
    """Check that all workers got the same in every round. Return the masks of the ranks behind
    each."""
    for r in results[1:]:
        assert r["rounds"] == results[0]["rounds"]
    return [masks for _, masks in results[0]["rounds"]]


def lost(result):
    return {w["rank"]: w["why"] for w in result["people"] if w["is_lost"]}
