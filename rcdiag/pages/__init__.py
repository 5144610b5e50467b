"""Figures, tables and sentences of results, on one self-contained HTML page.

Pages need neither torch nor the trajectory table: everything that they show is in the result. Each
folder has the figures and sentences of one kind of result. To add a figure, write a function that
returns its chart and a `FigureSpec` into a file of the folder, and add it to the file's `FIGURES`;
a new file is added to `rcdiag.pages.figures`. From outside, call `FIGURES.add(FigureSpec(...))` of
that module.
"""
