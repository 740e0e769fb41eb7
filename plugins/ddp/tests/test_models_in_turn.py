from pathlib import Path

from torchbus_testing.forking import fork_script


def test_statistics_are_rank_0s_whichever_model_is_frozen(tmp_path):
    script = Path(__file__).parent / "scripts" / "models_in_turn.py"
    result = fork_script(script, cwd=tmp_path, timeout_s=120)
    assert result.ok() and "alike True" in result.stdout
