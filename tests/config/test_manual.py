"""docs/settings.md is what the schema says."""

from pathlib import Path

from sbpipe.config import known_keys
from sbpipe.config.manual import COMMAND, render

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), f"make it anew: {COMMAND}"


def test_every_setting_has_a_row_with_its_meaning() -> None:
    rows = [line for line in render().splitlines() if line.startswith("| `")]
    assert len(rows) == len(known_keys())
    for row, (key, known) in zip(rows, known_keys().items(), strict=True):
        assert row.startswith(f"| `{key.rpartition('.')[2]}` |")
        assert known.metadata["meaning"].partition("|")[0] in row
