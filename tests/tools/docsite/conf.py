# SPDX-License-Identifier: Apache-2.0
"""How Sphinx makes HTML of the pages that ``stage.py`` lays out."""

project = "accel.kubernetes"
copyright = "Accel Kubernetes contributors"
root_doc = "README"
extensions = ["myst_parser", "sphinx_antsibull_ext"]
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
# Pictures of the dark theme, which pages name in HTML.
html_extra_path = ["extra"]
html_css_files = ["docsite.css"]
html_copy_source = False
html_show_sphinx = False
# As GitHub: every heading has an anchor, and links to Markdown pages are links between pages.
myst_heading_anchors = 6
# Languages without a lexer, such as promql, and YAML with placeholders are shown as they are.
# Pages of modules refer to Ansible's own documentation, which no build here asks for.
suppress_warnings = ["misc.highlighting_failure", "ref.ref"]
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
