"""Started as `python -IS stub.py SPEC …`: find the package, run the shim.

Kept this short because a script is compiled at every start, while what it imports is not.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from podwire.cri.shim import main

main(sys.argv[1])
