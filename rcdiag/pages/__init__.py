"""Figures, tables and sentences of results, on one self-contained HTML page.

Pages need neither torch nor the trajectory table: all that they show is in the result. A folder
holds the figures and sentences of one kind of result. To add a
figure, write a drawing function and its `FigureSpec` into one file of the folder, and list it in
the file's `FIGURES`, a new file in `rcdiag.pages.figures`; from outside, call
`FIGURES.add(FigureSpec(...))` of that module.
"""
