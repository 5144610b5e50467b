"""Read pickles and torch files without executing anything in them.

A pickle is a program that may call any function of any module. `load_pickle` and `load_torch` run
it in Python's unpickler with a fixed table of names, each replaced by code of this package. They
build plain containers, numpy arrays and tensors; every other name is refused.
"""

from rcdiag.table.readers.safe.content import Content as Content
from rcdiag.table.readers.safe.content import laid_out as laid_out
from rcdiag.table.readers.safe.content import open_content as open_content
from rcdiag.table.readers.safe.stand_ins import Foreign as Foreign
from rcdiag.table.readers.safe.stand_ins import foreign as foreign
from rcdiag.table.readers.safe.tensordicts import Same as Same
from rcdiag.table.readers.safe.torch_file import is_torch_file as is_torch_file
from rcdiag.table.readers.safe.torch_file import load_torch as load_torch
from rcdiag.table.readers.safe.unpickler import load_pickle as load_pickle
from rcdiag.table.readers.safe.views import Jagged as Jagged
from rcdiag.table.readers.safe.views import StoredTensor as StoredTensor
