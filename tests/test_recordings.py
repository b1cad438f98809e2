"""What data/results holds: by which commands, with which heads, and how to do it again."""

import json

import pytest

from specnb import heads, recordings


@pytest.fixture
def results(tmp_path):
    """Five recordings made with heads that are still there, replaced, replaced in part, gone, or not named."""
    (tmp_path / "drafts").mkdir()
    for name in ("eagle", "edd"):
        (tmp_path / "drafts" / f"{name}.safetensors").write_bytes(name.encode())
        (tmp_path / "drafts" / f"{name}.json").write_text('{"date": "2026-01-02"}')
    now = heads.hashes(["eagle", "edd"], tmp_path / "drafts")
    run = {"command": "python -m specnb.grids one", "date": "2026-01-02", "processor": "a", "head_sha256": now}
    older = {**run, "command": "python -m specnb.grids two", "date": "2026-01-01", "head_sha256": {"edd": "0"}}
    folder = tmp_path / "results"
    folder.mkdir()
    for name, content in {
        "race": run,
        "race_long": {"runs": [older, run, run]},
        "hot": {"runs": [{**run, "head_sha256": {"eagle@1.3": now["eagle"]}}]},
        "gone": {**run, "head_sha256": {"eagle": "0", "hass": "1"}},
        "prompts": {"command": "python -m specnb.bench", "date": "2026-01-03"},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
        (folder / f"{name}.csv").write_text("a\n1\n")
    (folder / "race_plain.csv").write_text("a\n1\n")
    return folder, tmp_path / "drafts"


def test_a_listing_tells_replaced_heads_from_committed_ones(results):
    table = recordings.listing(*results).set_index("name")
    assert table["heads"].to_dict() == {
        "race": "as committed",
        "race_long": "replaced: edd",
        "hot": "as committed",
        "gone": "replaced: eagle; gone: hass",
        "prompts": "",
    }
    assert table.loc["race_long", "date"] == "2026-01-02"
    assert table.loc["race_long", "commands"] == ["python -m specnb.grids two", "python -m specnb.grids one"]
    assert table.loc["prompts", "processors"] == "not named"


def test_doing_it_again_takes_a_recordings_own_files_away_first(results):
    folder, _ = results
    table = recordings.listing(*results)
    files = " ".join(str(folder / name) for name in ("race.csv", "race.json", "race_plain.csv"))
    assert recordings.again(table, ["race"], folder) == [f"rm -f {files}", "python -m specnb.grids one"]
    assert len(recordings.again(table, ["race*"], folder)) == 5
    with pytest.raises(ValueError, match="no recording is named 'ptd': known are gone, hot, prompts, race, race_long"):
        recordings.again(table, ["ptd"], folder)


def test_a_notebook_says_which_of_its_recordings_have_other_heads(results):
    said = recordings.remark("race*", "prompts", folder=results[0], drafts=results[1])
    first, second, last = said.splitlines()  # prompts is younger than the heads
    assert first == "of the 3 recordings read here"
    assert second == "  1 made with heads other than the committed ones: race_long"
    assert last.startswith("  these, and the sentences that quote them, speak of earlier heads")
    (results[1] / "eagle.json").write_text('{"date": "2026-01-04"}')
    said = recordings.remark("race", "prompts", folder=results[0], drafts=results[1])
    assert "\n  1 naming no head, and older than the newest of them (2026-01-04): prompts\n" in said
    said = recordings.remark("race", "hot", "race", folder=results[0], drafts=results[1])
    assert said == "all 2 recordings read here were made with the committed heads, or with none"
    with pytest.raises(ValueError, match="no recording is named 'ptd'"):
        recordings.remark("ptd", folder=results[0], drafts=results[1])


def test_hashes_of_an_unknown_head_name_the_known_ones(results):
    with pytest.raises(ValueError, match=r"no trained head 'hass' in .*: known are eagle, edd"):
        heads.hashes(["edd@1.3", "hass"], results[1])


def test_a_file_without_a_command_is_refused(results):
    folder, drafts = results
    (folder / "notes.json").write_text("{}")
    with pytest.raises(ValueError, match="is no recording: it names no command"):
        recordings.listing(folder, drafts)


def test_every_committed_recording_names_commands_of_this_package():
    table = recordings.listing()
    assert len(table) > 50
    assert all(command.startswith("python -m specnb.") for commands in table["commands"] for command in commands)
