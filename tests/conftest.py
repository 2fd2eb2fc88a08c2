"""What all tests share: the programs that set-up installed beside this Python (kubectl) are found."""

import os
import sys

os.environ["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
