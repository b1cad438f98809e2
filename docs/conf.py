"""Sphinx's settings for ``make html``; the pages are put together by tools/build_site.py."""

project = html_title = "specnb"
extensions = ["myst_nb"]
html_theme = "furo"
html_copy_source = html_show_copyright = False
exclude_patterns = ["run"]  # notebooks as they are, to be downloaded
nb_execution_mode = "off"  # what is shown is what was saved
nb_merge_streams = True
html_static_path, html_css_files, html_js_files = ["_static"], ["wide.css"], ["stills.js", "pictures.js"]
