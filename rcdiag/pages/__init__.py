"""Results -> figures, sections, one self-contained page. Needs neither torch nor the data.

To add a figure: one drawing function, one entry in `FIGURES`. To add a section: one block in
`page.html.j2`.
"""
