"""Fixtures: a browser, and the site of ``make html``."""

import shutil

import build_site
import pytest


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium, the system's or Playwright's own."""
    missing = "NO WIDGET WAS TRIED IN A BROWSER: "
    api = pytest.importorskip("playwright.sync_api", reason=missing + "the Python package playwright is missing")
    with api.sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", own))), None)
        if found is None:
            pytest.skip(
                missing + "there is no Chromium; apt-get install chromium, or python -m playwright install chromium"
            )
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    build_site.build(folder)
    return folder
