"""`python -m gpupool`: the command `gpupool` of this interpreter."""
import sys

from ._command import main

sys.exit(main())
